"""Would another Runge-Kutta method need fewer evaluations of h? Evaluations against error.

    python benchmarks/methods.py [--positions 256] [--sites 18] [--width 512]
        [--model FOLDER] [--out benchmarks/results/methods.json]

SciPy's methods of order 3, 5 and 8 (RK23; RK45, the pair of Dormand and Prince that floater uses;
DOP853) solve the same flow in float64, each with its own dense output and step control, at
tolerances from 1e-2 to 1e-6 (atol is a tenth of rtol). The error is the largest difference to a
solution with rtol 1e-10, at all positions, relative to the largest |p|. Below them stands floater's
own solver, in float32.

An evaluation costs the same with every method, and the reverse sweep one more evaluation and its
transpose for each, so the counts decide. They do not depend on the load of the machine.

`--model` takes the flow of a saved translation model (the folder `model` of a run) instead of a
fresh one, so that the dynamics are trained ones. Sites and width are then its own.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from transformers import AutoModelForSeq2SeqLM

import floater
from floater.encoders import Flow
from floater.errors import FloaterError
from step_models import flow_config
from turns import begin, options, save, show

SIZES: dict[str, int | None] = {"positions": 256, "sites": 18, "width": 512, "threads": 2}
METHODS = {"RK23": 3, "RK45": 5, "DOP853": 8}
"""SciPy's names and orders."""
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
OURS = "floater"


def saved_flow(folder: Path) -> Flow:
    """Return the flow of a saved translation model."""
    try:
        model = floater.from_pretrained(AutoModelForSeq2SeqLM, folder)
    except FloaterError as error:
        fail(str(error))
    for module in model.modules():
        if isinstance(module, Flow):
            return module
    fail(f"--model must have a flow, but {folder} has none.")


def fail(message: str) -> NoReturn:
    """Print one line and end with exit code 2."""
    print(f"methods.py: {message}", file=sys.stderr)
    sys.exit(2)


class Reference:
    """A flow as SciPy sees it, in float64.

    Args:
        flow: the flow; its weights become float64.
        positions: number of positions, from time 0 on.
    """

    def __init__(self, flow: Flow, positions: int) -> None:
        self._flow = flow.double()
        self._times = flow.delta * np.arange(positions)
        self._start = flow.initial.detach().double()
        if flow.origins is not None:
            self._start = self._start + flow.origins
        self.evaluations = 0

    def _h(self, time: float, state: NDArray[np.float64]) -> NDArray[np.float64]:
        self.evaluations += 1
        point = torch.from_numpy(state).view_as(self._start)
        with torch.no_grad():
            slope = self._flow.dynamics(torch.tensor(time, dtype=torch.float64), point)
        found: NDArray[np.float64] = slope.reshape(-1).numpy()
        return found

    def solve(self, method: str, rtol: float) -> NDArray[np.float64]:
        """Return the states [positions, sites * width], and count the evaluations of h."""
        self.evaluations = 0
        solution = solve_ivp(
            self._h,
            (0.0, float(self._times[-1])),
            self._start.reshape(-1).numpy(),
            method=method,
            t_eval=self._times,
            rtol=rtol,
            atol=rtol / 10,
        )
        states: NDArray[np.float64] = solution.y.T
        return states


def own_table(flow: Flow, positions: int, rtol: float) -> tuple[NDArray[np.float64], int]:
    """Return the same states from floater's solver, and its number of evaluations."""
    flow = copy.deepcopy(flow).float()
    flow.solver = floater.ode.Dopri5(rtol=rtol, atol=rtol / 10)
    with torch.no_grad():
        table = flow.table(positions).double()
    if flow.origins is not None:
        table = table + flow.origins.double()
    return table.reshape(positions, -1).numpy(), flow.evaluations


def main(given: Sequence[str] | None = None) -> int:
    parser = options("methods", __doc__, SIZES)
    parser.add_argument("--model", type=Path, help="folder of a saved translation model")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/methods.json"))
    arguments = parser.parse_args(given)
    if arguments.positions < 2:
        fail(f"--positions must be at least 2, but is {arguments.positions}.")
    begin(arguments.threads, arguments.out)
    if arguments.model is None:
        flow = flow_config().build(arguments.sites, arguments.width)
    else:
        flow = saved_flow(arguments.model)
        arguments.sites, arguments.width = flow.initial.shape
    reference = Reference(flow, arguments.positions)
    exact = reference.solve("DOP853", 1e-10)
    scale = float(np.abs(exact).max())
    rows: list[dict[str, Any]] = []
    for method, order in METHODS.items():
        for rtol in TOLERANCES:
            error = float(np.abs(reference.solve(method, rtol) - exact).max()) / scale
            counted = reference.evaluations
            rows.append(
                {"method": method, "order": order, "rtol": rtol, "error": error, "count": counted}
            )
    for rtol in TOLERANCES:
        states, counted = own_table(flow, arguments.positions, rtol)
        error = float(np.abs(states - exact).max()) / scale
        rows.append({"method": OURS, "order": 5, "rtol": rtol, "error": error, "count": counted})
    save(arguments, "methods", rows=rows, largest=scale)
    show(
        f"{arguments.positions} positions, {arguments.sites} sites of {arguments.width}",
        ("method", "order", "rtol", "largest error", "evaluations of h"),
        (
            (
                row["method"],
                str(row["order"]),
                f"{row['rtol']:g}",
                f"{row['error']:.1e}",
                str(row["count"]),
            )
            for row in rows
        ),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
