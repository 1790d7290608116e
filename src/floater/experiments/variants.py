"""What is compared: the variants of an experiment, and their settings at each scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError
from ..recipes import merge, read, with_overrides
from ..runs.results import Paper
from ..tasks import task_from

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")


@dataclass(frozen=True)
class Variant:
    """One row of a comparison.

    Attributes:
        key: name of its folder, and the end of the names of its config files.
        name: what tables call it.
        after: key of the variant whose run it is warm-started from.
        paper: the paper's own numbers, by column.
        settings: what differs from the config of its key.
    """

    key: str
    name: str
    after: str | None = None
    paper: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def paper(variant: Variant, column: str) -> Paper | None:
    """The paper's number of a variant, if it has one."""
    return Paper(paper=variant.paper[column]) if column in variant.paper else None


_FLOW = {"kind": "flow", "zero_init": False, "initial_scale": 0.1}
EMBEDDED_POSITIONS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "sinusoidal-blocks": {"encoder": {"kind": "sinusoidal", "block_term": True}, "sites": "blocks"},
    "sinusoidal-more": {},
    "learned": {
        "encoder": {"kind": "learned", "max_length": 48, "beyond": "clamp"},
        "sites": "input",
    },
    "learned-blocks": {
        "encoder": {"kind": "learned", "max_length": 48, "beyond": "clamp"},
        "sites": "blocks",
    },
    "recurrent": {"encoder": {"kind": "recurrent"}, "sites": "blocks"},
    "recurrent-1-scalar": {"encoder": {"kind": "recurrent"}, "sites": "blocks"},
    "recurrent-2-scalar": {"encoder": {"kind": "recurrent", "layers": 2}, "sites": "blocks"},
    "recurrent-1-vector": {"encoder": {"kind": "recurrent", "input": "vector"}, "sites": "blocks"},
    "recurrent-2-vector": {
        "encoder": {"kind": "recurrent", "layers": 2, "input": "vector"},
        "sites": "blocks",
    },
    "rotary": {"encoder": {"kind": "rotary"}, "sites": "qkv"},
    "flow": {"encoder": _FLOW, "sites": "input"},
    "flow-blocks": {"encoder": _FLOW, "sites": "blocks"},
    "flow-qkv": {"encoder": {"kind": "flow"}, "sites": "qkv", "own": "keep"},
    "flow-qkv-scratch": {"encoder": _FLOW, "sites": "qkv"},
}
"""Positions of the variants on embedded data; at the other scales the config files have them."""


def embedded(key: str, **changes: Any) -> dict[str, Any]:
    """Settings of a variant on the embedded corpus, of a size that learns within seconds;
    `changes` are merged in.
    """
    base: dict[str, Any] = {
        "task": "translation",
        "data": {
            "source": "en",
            "target": "de",
            "embedded": {
                "train": {"pairs": 2000, "longest": 3},
                "valid": {"pairs": 20, "longest": 3},
                "test": {"pairs": 60, "longest": 10},
                "largest": 999,
            },
            "max_source_tokens": 31,
        },
        "vocabulary": {"size": 500},
        "model": {
            "preset": "tiny",
            "layers": 1,
            "dim": 32,
            "feed_forward": 64,
            "heads": 2,
            "dropout": 0.0,
        },
        "positions": EMBEDDED_POSITIONS[key],
        "training": {
            "updates": 30,
            "batch_tokens": 1024,
            "lr": 0.005,
            "warmup": 20,
            "evaluate_every": 30,
            "save_every": 10,
            "keep": 2,
            "average": 2,
            "log_every": 5,
            "tensorboard": False,
            "threads": 1,
        },
        "decoding": {"beam": 1, "max_ratio": 1.5, "length_bins": [32, 64]},
    }
    return merge(base, changes)


def _config(name: str) -> Path | None:
    places = [Path("configs"), Path(__file__).parents[3] / "configs"]
    return next((place / name for place in places if (place / name).is_file()), None)


def configs(name: str) -> Path:
    """A file below `configs/`, of the present folder or of the clone that this package is used
    from.
    """
    found = _config(name)
    if found is not None:
        return found
    raise ConfigError(
        f"configs/{name} must be a config file, but there is none; run this in a clone of the "
        "project."
    )


HOUR = {"training": {"updates": 2000}}
"""What lets all variants of an item at the scale small be done within an hour on two cores; a later
start may ask for more updates.
"""


@dataclass(frozen=True)
class Sources:
    """Where the settings of an experiment's variants come from.

    Attributes:
        small, paper: names of config files below `configs/`, with {key} in them where each variant
            has its own.
        hurried: what differs at the scale small, where the config files would take too long.
        positions: at the scale smoke, the key in `EMBEDDED_POSITIONS` that all variants start from;
            each its own unless given.
    """

    small: str
    paper: str
    positions: str | None = None
    hurried: Mapping[str, Any] = field(default_factory=dict)

    def offers(self, variant: Variant, scale: Scale) -> bool:
        """Whether there are settings for a variant at a scale; whether they are right is another
        question.
        """
        if scale == "smoke":
            return (self.positions or variant.key) in EMBEDDED_POSITIONS
        return _config(self._file(variant, scale)) is not None

    def by_key(self, scale: Scale) -> bool:
        """Whether each variant has settings of its own at a scale, so that there may be more
        variants than an item lists.
        """
        return (
            self.positions is None
            if scale == "smoke"
            else "{key}" in (self.small if scale == "small" else self.paper)
        )

    def _file(self, variant: Variant, scale: Scale) -> str:
        return (self.small if scale == "small" else self.paper).format(key=variant.key)

    def settings(
        self, variant: Variant, scale: Scale, overrides: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The settings of a variant at a scale, without seed and warm start."""
        found = (
            embedded(self.positions or variant.key)
            if scale == "smoke"
            else read(configs(self._file(variant, scale)))
        )
        found = merge(merge(found, self.hurried if scale == "small" else {}), variant.settings)
        found.pop("init_from", None)
        found = with_overrides(found, overrides)
        try:
            task_from(found)
        except ConfigError as error:
            where = (
                f"the settings of {variant.name}"
                if scale == "smoke"
                else f"configs/{self._file(variant, scale)}"
            )
            raise ConfigError(f"{where}: {error}") from None
        return found
