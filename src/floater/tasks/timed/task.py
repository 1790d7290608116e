"""The base class of tasks with real-valued times: a body from scratch, clocks, folds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from ...attachments import attachment
from ...errors import ArgumentError, RunError
from ...files import new_folder, record_hashes
from ...runs.comparison import VariantScore
from ...runs.encodings import MAX_POSITIONS, Encodings
from ...runs.folder import RunFolder
from ...training.task import EvaluationRequest, PredictionRequest, Task
from ..understanding.evaluation import table_of
from ..understanding.measured import MeasuredData, MeasuredTask
from ..understanding.problem import Features, Split
from ..understanding.resampling import paired_bootstrap
from .config import TimedConfig
from .folds import SplitConfig, over_folds, pooled
from .model import TimedModel, TimedModelConfig, load_timed

S = TypeVar("S", bound=Split)
F_ = TypeVar("F_", bound=Features)


class TimedTask(MeasuredTask[S, F_, MeasuredData]):
    """A task on tokens with real-valued times.

    In place of a tokenizer stands what was measured on the training data (`prepared`), which is
    saved in the `config.json` of the model.
    """

    config: TimedConfig
    config_class: ClassVar[type[TimedConfig]]
    model_class: ClassVar[type[TimedModel]]
    evaluation_options = frozenset({"data", "unit"})
    same_start = False  # each variant has positions of its own from the start

    @property
    def model_name(self) -> str:
        model = self.config.model
        return f"{model.size('layers')} layers of {model.size('dim')}"

    @abstractmethod
    def to_json(self, prepared: Any) -> dict[str, Any]:
        """What was measured on the training data, ready for JSON; with `span`, the largest time."""

    @abstractmethod
    def from_json(self, saved: Mapping[str, Any]) -> Any:
        """The same, read again."""

    def build_model(self, data: MeasuredData) -> nn.Module:
        return self.model_class(TimedModelConfig.of(self.config, self.to_json(data.tokenizer)))

    def load(self, path: Path) -> tuple[nn.Module, Any]:
        model = load_timed(self.model_class, path, self.config.clock)
        prepared = self.from_json(model.config.prepared)
        saved, expected = model.config.prepared.get("sizes"), self.to_json(prepared).get("sizes")
        if saved != expected:
            raise RunError(
                f"{path} must hold a model with inputs and head as this run has them, but holds "
                "another one; give the weights of a run with the same settings."
            )
        return model, prepared

    def weights_to_predict(self, folder: RunFolder, request: PredictionRequest) -> Path:
        """The folder with the weights that `floater predict` uses."""
        if request.model is not None and not request.model.is_dir():
            raise ArgumentError(
                f"`--model` must be a folder with weights, but {request.model} is none."
            )
        weights = request.model or folder.model
        if not weights.is_dir():
            raise RunError(f"{folder.path} holds no model; finish the run, or give --model.")
        return weights

    def save(self, folder: RunFolder, model: Any, tokenizer: Any) -> None:
        if self.config.training.keep_model:
            with new_folder(folder.model) as temporary:
                model.save_pretrained(temporary)
                record_hashes(temporary)

    def store_positions(self, folder: RunFolder, model: nn.Module) -> None:
        """Store the encodings on the real clock, from 0 to the largest time of the training data;
        on indices, as for any other model.
        """
        assert isinstance(model, TimedModel)
        if model.on_indices:
            super().store_positions(folder, model)
            return
        encodings = encodings_on_clock(model, self.config)
        if encodings is not None:
            encodings.write(folder.path)

    def evaluate(self, folder: RunFolder, request: EvaluationRequest, console: Console) -> None:
        self.config.clock.check_unit(request.unit, str(request.data or "The data"))
        super().evaluate(folder, request, console)

    # Folds ----------------------------------------------------------------------------------------

    @property
    def _split_config(self) -> SplitConfig | None:
        data = getattr(self.config, "data", None)
        return data if isinstance(data, SplitConfig) and data.folds is not None else None

    def on_fold(self, fold: int) -> Self:
        """The same run with another fold as its test set, and the number of the fold as seed."""
        data: Any = self._split_config
        changes = {"seed": fold, "data": data.model_copy(update={"fold": fold})}
        return self.with_config(self.config.model_copy(update=changes))

    def seeds(self) -> Sequence[int]:
        split = self._split_config
        return super().seeds() if split is None or split.folds is None else range(split.folds)

    def variants(self, seed: int) -> dict[str, Task[MeasuredData]]:
        if self._split_config is None:
            return super().variants(seed)
        on_fold = self.on_fold(seed)
        return {
            name: on_fold.with_config(variant)
            for name, variant in on_fold.config.chosen_variants().items()
        }

    def compare(
        self, runs: Mapping[str, Sequence[RunFolder]], *, over_seeds: bool = False
    ) -> list[VariantScore]:
        """With folds, scores are means over folds, and examples are resampled over all folds."""
        if self._split_config is None:
            return super().compare(runs, over_seeds=over_seeds)
        base, *others = runs
        return [
            row
            for variant in others
            for row in self.compare_folds(base, runs[base], variant, runs[variant])
        ]

    def compare_folds(
        self, base: str, base_runs: Sequence[RunFolder], name: str, runs: Sequence[RunFolder]
    ) -> list[VariantScore]:
        """A variant against the base, on the test sets of all folds together."""
        tables = [pooled([table_of(run, "test") for run in each]) for each in (base_runs, runs)]
        rows = []
        for measure, function in over_folds(self.measures).items():
            draws = self.config.compare.draws
            difference = paired_bootstrap(function, [tables[0]], [tables[1]], draws=draws)
            rows.append(
                VariantScore(
                    **difference.model_dump(),
                    test_set="test",
                    against=base,
                    measure=measure,
                    more_is_better=measure not in self.less_is_better,
                    variant=name,
                    examples=len(tables[0]),
                    seeds={
                        key: [run.scores().sets["test"].scores[measure].score for run in each]
                        for key, each in ((base, base_runs), (name, runs))
                    },
                )
            )
        return rows


@torch.no_grad()
def encodings_on_clock(
    model: TimedModel, config: TimedConfig, points: int = MAX_POSITIONS
) -> Encodings | None:
    """The encodings of a model at equidistant times from 0 to the largest of its training data;
    None for an encoder that adds nothing. A clock that is learned from time alone is included.
    """
    attached = attachment(model)
    assert attached is not None
    if not attached.adds:
        return None
    span = float(model.config.prepared.get("span", 1.0))
    times = torch.linspace(0, span, points, dtype=torch.float64)
    on_clock = model.clock(times) if config.clock.learned == "time" and model.clock else times
    columns = attached.columns(attached.tables_at(on_clock))
    dim = max(column.shape[-1] for column in columns)
    tables = torch.stack([F.pad(column, (0, dim - column.shape[-1])) for column in columns])
    return Encodings(
        np.asarray(times.numpy()),
        tables.float().cpu().numpy(),
        tuple(attached.site_names()),
        str(attached.describe()["encoder"]["kind"]),
        config.positions.described(),
        points,
    )
