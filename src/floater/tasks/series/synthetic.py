"""Series that only real times can tell apart: the phase of an irregularly sampled oscillation."""

from __future__ import annotations

import hashlib

import numpy as np

from .config import Phases
from .observations import Observations

_SEED = 20
CLASSES = ("even", "odd")


def generate(config: Phases) -> tuple[Observations, list[str]]:
    """The observations and the class of each series; always the same.

    Half of the series are sin(2πt/period), half are its negative, at times that start anywhere in
    the first period.
    """
    random = np.random.default_rng(_SEED)
    shape = (config.series, config.observations)
    labels = random.permutation(config.series) % 2
    later = config.duration * np.sort(random.random(shape), 1)
    later -= later[:, :1]
    times = config.period * random.random((config.series, 1)) + later
    waves = np.where(labels, -1.0, 1.0)[:, None] * np.sin(2 * np.pi * times / config.period)
    values = waves + config.noise * random.standard_normal(shape)
    count = times.size
    observations = Observations(
        ids=[f"s{number}" for number in range(config.series)],
        offsets=np.arange(config.series + 1, dtype=np.int64) * config.observations,
        times=times.ravel(),
        variables=np.zeros(count, dtype=np.int32),
        values=values.ravel().astype(np.float32),
        names=["wave"],
        rows=np.arange(count),
        table=None,
        dropped=0,
        sha256=hashlib.sha256(config.model_dump_json().encode()).hexdigest(),
    )
    return observations, [CLASSES[label] for label in labels]
