"""The gradient "autograd": repeats the steps with differentiable operations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .gradient_method import GradientMethod, GradientProblem, just_after
from .output import OutputRequest
from .stepper import Stepper


class AutogradGradient(GradientMethod):
    """Plain backpropagation: autograd records every operation of every step."""

    calls_dynamics = True

    def __init__(self, problem: GradientProblem, stepper: Stepper) -> None:
        super().__init__(problem, stepper)
        self._polynomials: list[Tensor] = []  # [degree + 1, size] of each step

    def states(self, request: OutputRequest) -> Tensor:
        stepper, initial = self._stepper, self._problem.initial
        self._advance(request)
        self._replay()
        if not self._polynomials:
            return initial.reshape(1, -1).expand(len(request), -1)
        times = request.times.reshape(-1).to(torch.float64)
        if request.order is not None:
            times = times[torch.from_numpy(request.order).to(times.device)]
        step = np.searchsorted(np.asarray(stepper.grid[1:]), request.ascending, side="left")
        begin = torch.tensor(np.asarray(stepper.grid)[step])
        length = torch.tensor(np.asarray(stepper.lengths)[step])
        theta = ((times.cpu() - begin) / length).to(initial).unsqueeze(1)
        coefficients = torch.stack(self._polynomials)[torch.from_numpy(step).to(initial.device)]
        states = coefficients[:, -1]
        for degree in reversed(range(stepper.tableau.degree)):
            states = states * theta + coefficients[:, degree]
        if request.order is None:
            return states
        return states[torch.from_numpy(np.argsort(request.order)).to(initial.device)]

    def _advance(self, request: OutputRequest) -> None:
        if len(request):
            end = float(request.ascending[-1])
            with torch.no_grad():
                self._stepper.advance(just_after(end) if request.times.requires_grad else end)

    def _replay(self) -> None:
        """Repeat the steps that are not recorded yet."""
        stepper, initial = self._stepper, self._problem.initial
        tableau = stepper.tableau
        state = self._polynomials[-1].sum(0) if self._polynomials else initial.reshape(-1)
        dense = torch.tensor(tableau.dense, dtype=torch.float64).t().to(initial)
        polynomials = []
        for step in range(len(self._polynomials), stepper.steps):
            time, length = stepper.grid[step], stepper.lengths[step]
            slopes: list[Tensor] = []
            for node, row in zip(tableau.nodes, tableau.coupling, strict=True):
                stage = state
                for weight, slope in zip(row, slopes, strict=False):
                    if weight:
                        stage = stage + length * weight * slope
                slope = self._problem.dynamics(time + node * length, stage.view(initial.shape))
                slopes.append(slope.reshape(-1))
            sums = (length * dense) @ torch.stack(slopes)
            polynomials.append(torch.cat((state.unsqueeze(0), sums)))
            state = state + sums.sum(0)
        self._polynomials += polynomials
