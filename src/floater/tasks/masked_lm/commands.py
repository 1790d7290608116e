"""Masked language modelling on the command line: the head first, where a checkpoint has none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ...recipes import read
from ...training.records import CONFIG, RunFolder
from ..understanding import run
from ..understanding.commands import Understanding
from ..understanding.config import UnderstandingConfig
from ..understanding.models import lacks_head, locate
from .problem import MaskedConfig, MaskedLM


def with_head(config: MaskedConfig, path: Path, console: Console) -> MaskedConfig:
    """The config on a model with a head: where the checkpoint has none, it is fitted first, once
    for all runs that share it.

    Args:
        config: of a run.
        path: where the head's run goes, unless the config says where.
        console: where to tell what happens.
    """
    where = locate(config.model.name)
    if not lacks_head(MaskedLM.auto_class, where):
        return config
    place = config.head.run or path
    alone = config.model_copy(
        update={"training": config.head.training, "seed": 0, "dynamics": None}
    ).bare()
    fitted = _fitted(alone, place)
    doing = "taking the one fitted" if fitted else "fitting one"
    console.print(
        f"{config.model.name} has no language-model head: {doing} in {place}",
        highlight=False,
        markup=False,
    )
    if not fitted:
        run.train(MaskedLM, alone, place, resume=place.exists(), console=console)
    return config.model_copy(
        update={"model": config.model.model_copy(update={"name": str(place / "model")})}
    )


def _fitted(config: UnderstandingConfig, place: Path) -> bool:
    """Whether a folder holds the finished head of this model, trained in this way, be it on other
    data or lengths.
    """
    if not RunFolder(place).facts().get("finished"):
        return False
    before, now = read(place / CONFIG), config.dump()
    return all(before.get(part) == now[part] for part in ("task", "model", "training"))


@dataclass(frozen=True)
class MaskedLanguage(Understanding):
    """A run of masked language modelling."""

    config: MaskedConfig

    def train(self, path: Path, *, resume: bool, console: Console) -> RunFolder:
        return self._ready(path, console).train(path, resume=resume, console=console)

    def compare(self, path: Path, *, resume: bool, console: Console) -> dict[str, Any]:
        return self._ready(path, console).compare(path, resume=resume, console=console)

    def _ready(self, path: Path, console: Console) -> Understanding:
        return Understanding(self.kind, with_head(self.config, path / "head", console))
