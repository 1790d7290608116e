"""A multivariate Hawkes process with exponential kernels: sequences and their true likelihood."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .config import Hawkes

_SEED = 20


def simulate(config: Hawkes) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Times and types [sequences, events]; always the same for the same settings.

    All sequences advance together, by thinning: between events the total rate only falls, so its
    present value bounds it.
    """
    random = np.random.default_rng(_SEED)
    base = np.array(config.base)
    kernel = np.array(config.excitation) * config.decay
    count, length = config.sequences, config.events
    times, types = np.zeros((count, length)), np.zeros((count, length), dtype=np.int64)
    now, done = np.zeros(count), np.zeros(count, dtype=np.int64)
    excited = np.zeros((count, len(base)))
    while len(active := np.flatnonzero(done < length)):
        bound = base.sum() + excited[active].sum(1)
        wait = random.exponential(size=len(active)) / bound
        now[active] += wait
        excited[active] *= np.exp(-config.decay * wait)[:, None]
        rates = base + excited[active]
        drawn = random.random(len(active)) * bound
        taken = drawn < rates.sum(1)
        chosen = (drawn[:, None] >= np.cumsum(rates, 1)).sum(1)[taken]
        rows = active[taken]
        times[rows, done[rows]], types[rows, done[rows]] = now[rows], chosen
        excited[rows] += kernel[:, chosen].T
        done[rows] += 1
    return times, types


def log_likelihoods(
    config: Hawkes, times: NDArray[np.float64], types: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The true log-density of every event after the first, given those before it.

    Args:
        config: of the process.
        times, types: of one or more sequences of equal length [..., events].

    Returns:
        [..., events - 1], in nats.
    """
    base = np.array(config.base)
    kernel = np.array(config.excitation) * config.decay
    excited = np.zeros((*times.shape[:-1], len(base)))
    found = np.empty((*times.shape[:-1], times.shape[-1] - 1))
    for event in range(1, times.shape[-1]):
        excited = excited + kernel.T[types[..., event - 1]]
        gap = times[..., event] - times[..., event - 1]
        left = np.exp(-config.decay * gap)[..., None]
        area = base.sum() * gap + (excited * (1 - left)).sum(-1) / config.decay
        excited = excited * left
        rate = np.take_along_axis(base + excited, types[..., event, None], -1)[..., 0]
        found[..., event - 1] = np.log(rate) - area
    return found


def true_log_likelihood(config: Hawkes, members: NDArray[np.int64]) -> float:
    """The true log-likelihood per event of some of the generated sequences, in nats."""
    times, types = simulate(config)
    return float(log_likelihoods(config, times[members], types[members]).mean())
