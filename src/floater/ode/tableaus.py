"""Runge-Kutta methods as data.

The last stage of every method is evaluated at the end of the step and is the first stage of the
next step. This costs one evaluation per solve, and gives each method a smooth dense output.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge-Kutta method with S stages and a dense output of degree D.

    Stage s is k_s = h(t + nodes[s]·η, y + η Σ_j coupling[s][j] k_j). The last row of `coupling`
    holds the weights of the step itself. Inside the step, p(t + θη) = y + η Σ_s (Σ_j dense[s][j]
    θ^(j+1)) k_s. `error` holds the weights of the stages in an estimate of the local error; a
    method without it takes fixed steps.
    """

    name: str
    order: int
    nodes: tuple[float, ...]
    coupling: tuple[tuple[float, ...], ...]
    dense: tuple[tuple[float, ...], ...]
    error: tuple[float, ...] | None = None

    @property
    def stages(self) -> int:
        """Number of stages, the shared one included."""
        return len(self.nodes)

    @property
    def degree(self) -> int:
        """Degree of the dense output in θ."""
        return len(self.dense[0])


def _hermite(weights: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    """Return the cubic through both ends of a step with the slopes there, per stage."""
    last = len(weights) - 1
    rows = []
    for stage, weight in enumerate(weights):
        begins, ends = float(stage == 0), float(stage == last)
        rows.append((begins, 3 * weight - 2 * begins - ends, -2 * weight + begins + ends))
    return tuple(rows)


EULER = Tableau(
    name="euler",
    order=1,
    nodes=(0.0, 1.0),
    coupling=((0.0, 0.0), (1.0, 0.0)),
    dense=((1.0,), (0.0,)),
)

MIDPOINT = Tableau(
    name="midpoint",
    order=2,
    nodes=(0.0, 1 / 2, 1.0),
    coupling=((0.0, 0.0, 0.0), (1 / 2, 0.0, 0.0), (0.0, 1.0, 0.0)),
    dense=_hermite((0.0, 1.0, 0.0)),
)

RUNGE_KUTTA_4 = Tableau(
    name="rk4",
    order=4,
    nodes=(0.0, 1 / 2, 1 / 2, 1.0, 1.0),
    coupling=(
        (0.0, 0.0, 0.0, 0.0, 0.0),
        (1 / 2, 0.0, 0.0, 0.0, 0.0),
        (0.0, 1 / 2, 0.0, 0.0, 0.0),
        (0.0, 0.0, 1.0, 0.0, 0.0),
        (1 / 6, 1 / 3, 1 / 3, 1 / 6, 0.0),
    ),
    dense=_hermite((1 / 6, 1 / 3, 1 / 3, 1 / 6, 0.0)),
)

# Dormand & Prince (1980); dense output of order 4 after Shampine (1986).
DORMAND_PRINCE_5 = Tableau(
    name="dopri5",
    order=5,
    nodes=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
    coupling=(
        (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        (1 / 5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        (3 / 40, 9 / 40, 0.0, 0.0, 0.0, 0.0, 0.0),
        (44 / 45, -56 / 15, 32 / 9, 0.0, 0.0, 0.0, 0.0),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729, 0.0, 0.0, 0.0),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656, 0.0, 0.0),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0),
    ),
    dense=(
        (1.0, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799),
        (0.0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072),
        (0.0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632),
        (0.0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844),
        (0.0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423),
    ),
    error=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
)
