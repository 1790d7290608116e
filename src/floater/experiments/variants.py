"""The variants that an experiment compares, and their settings at each scale."""

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
        key: name of its run folders and of its config files.
        name: its name in tables.
        after: key of the variant whose runs it is warm-started from.
        paper: the numbers of the paper, by column.
        settings: settings that differ from the config of its key.
    """

    key: str
    name: str
    after: str | None = None
    paper: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def published(self, column: str) -> Paper | None:
        """The number of the paper in a column; None if it has none."""
        return Paper(paper=self.paper[column]) if column in self.paper else None


RANDOM_FLOW = {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.1}
"""A flow whose encodings are not zero at the start of training."""
FAR_FLOW = {**RANDOM_FLOW, "horizon": 20.0}
"""The same with a bounded view of time, for inputs much longer than those of training."""
ROTATING_FLOW = {**FAR_FLOW, "rotating": True, "initial_scale": 0.5}
"""The same, beginning as a sinusoid."""
STRETCH = {"stretch": 4.0}
"""Random times while training: tokens up to four times as far apart."""
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
    "relative": {"encoder": {"kind": "relative", "init_std": 0.1}, "sites": "qkv"},
    "rotary": {"encoder": {"kind": "rotary"}, "sites": "qkv"},
    "rotary-flow": {"rotary": True, "encoder": RANDOM_FLOW, "sites": "qkv"},
    "flow": {"encoder": RANDOM_FLOW, "sites": "input"},
    "flow-blocks": {"encoder": RANDOM_FLOW, "sites": "blocks"},
    "flow-qkv": {"encoder": {"kind": "flow", "pace": "free"}, "sites": "qkv", "own": "keep"},
    "flow-qkv-scratch": {"encoder": RANDOM_FLOW, "sites": "qkv"},
    "sinusoidal-stretch": {
        "encoder": {"kind": "sinusoidal"},
        "sites": "blocks",
        "jitter": STRETCH,
    },
    "rotary-stretch": {"encoder": {"kind": "rotary"}, "sites": "qkv", "jitter": STRETCH},
    "rotary-flow-stretch": {
        "rotary": True,
        "encoder": FAR_FLOW,
        "sites": "qkv",
        "jitter": STRETCH,
    },
    "rotary-flow-half": {
        "rotary": True,
        "encoder": FAR_FLOW,
        "sites": "qkv",
        "jitter": {**STRETCH, "share": 0.5},
    },
    "flow-stretch": {"encoder": FAR_FLOW, "sites": "qkv", "jitter": STRETCH},
    "rotating-stretch": {"encoder": ROTATING_FLOW, "sites": "qkv", "jitter": STRETCH},
    "rotating-half": {
        "encoder": ROTATING_FLOW,
        "sites": "qkv",
        "jitter": {**STRETCH, "share": 0.5},
    },
}
"""`positions` of each variant at the scale smoke; at the other scales config files define them."""


def embedded(key: str, **changes: Any) -> dict[str, Any]:
    """The settings of a small model on the embedded corpus, which trains within seconds.

    Args:
        key: of the variant, in `EMBEDDED_POSITIONS`.
        changes: settings to merge in.
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


def _find_config(name: str) -> Path | None:
    folders = [Path("configs"), Path(__file__).parents[3] / "configs"]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def config_file(name: str) -> Path:
    """A file in `configs/` of the current folder, or of the clone that contains this package."""
    path = _find_config(name)
    if path is None:
        raise ConfigError(
            f"configs/{name} must be a config file, but there is none; run this in a clone of the "
            "project."
        )
    return path


HOUR = {"training": {"updates": 2000}}
"""Settings with which all variants of an item at the scale small finish within an hour on two
cores. They can be resumed later with more updates, unless their learning rate falls to zero.
"""


@dataclass(frozen=True)
class Sources:
    """Where the settings of an experiment's variants come from.

    Attributes:
        small, paper: names of the config files in `configs/` at these scales; {key} stands for the
            key of the variant.
        positions: key in `EMBEDDED_POSITIONS` of all variants at the scale smoke; default: that of
            each variant.
        hurried: settings to change at the scale small, because the config files train too long.
    """

    small: str
    paper: str
    positions: str | None = None
    hurried: Mapping[str, Any] = field(default_factory=dict)

    def offers(self, variant: Variant, scale: Scale) -> bool:
        """Whether there are settings for a variant at a scale, valid or not."""
        if scale == "smoke":
            return (self.positions or variant.key) in EMBEDDED_POSITIONS
        return _find_config(self._file(variant, scale)) is not None

    def by_key(self, scale: Scale) -> bool:
        """Whether each key has its own settings, so that more variants exist than an item lists."""
        return self.positions is None if scale == "smoke" else "{key}" in self._template(scale)

    def _template(self, scale: Scale) -> str:
        return self.small if scale == "small" else self.paper

    def _file(self, variant: Variant, scale: Scale) -> str:
        return self._template(scale).format(key=variant.key)

    def settings(
        self, variant: Variant, scale: Scale, overrides: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The settings of a variant at a scale, without seed and warm start."""
        if scale == "smoke":
            name = f"the settings of {variant.name}"
            settings = embedded(self.positions or variant.key)
        else:
            name = f"configs/{self._file(variant, scale)}"
            settings = read(config_file(self._file(variant, scale)))
        settings = merge(settings, self.hurried if scale == "small" else {})
        settings = merge(settings, variant.settings)
        settings.pop("init_from", None)
        settings = with_overrides(settings, overrides)
        try:
            task_from(settings)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        return settings
