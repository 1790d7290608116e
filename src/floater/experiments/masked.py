"""A masked language model from scratch, trained on short inputs and tested on longer ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..files import write_text
from ..printing import print_text
from ..recipes import merge, read
from ..runs.folder import RunFolder
from ..runs.results import Cell, Figure, Table
from ..tasks.language_model.text import ChangedLines, from_wikitext, read_text
from ..tasks.masked_lm.task import MaskedLMTask
from ..tasks.understanding.evaluation import evaluate
from ..training.process import expecting_long_inputs
from .base import ReproductionRequest
from .encoder_comparison import AnyTask, EncoderComparison
from .fresh_model import UNKNOWN, FreshModel
from .result_tables import banded, scored
from .scheduler import Runs
from .variants import RANDOM_FLOW, STRETCH, Scale, config_file

FAR = {**RANDOM_FLOW, "horizon": 64.0}
"""A flow with a view of time that ends past the times of 128 tokens, stretched four times."""
SAFE_FLOW = {"kind": "flow"}
"""A flow that starts at zero, so that training begins with rotary positions alone."""
GAPS = {"gaps": 1, "until": 512}
"""Random times while training: positions are skipped at one place of each row, so that rows reach
as far as inputs of 512 tokens, and neighbours stay neighbours.
"""
_QKV = {"sites": "qkv", "own": "replace"}
_KEPT = {"sites": "qkv", "own": "keep"}


class MaskedByPosition(EncoderComparison):
    """WikiText; at the scale smoke, numbers in order."""

    name = "masked"
    title = "Masked language model by position encoding"
    positions = {  # noqa: RUF012  (declared in the base class)
        "rotary": {"encoder": {"kind": "rotary"}, **_QKV},
        "rotary-stretch": {"encoder": {"kind": "rotary"}, "jitter": STRETCH, **_QKV},
        "rotary-flow": {"rotary": True, "encoder": SAFE_FLOW, **_QKV},
        "rotary-flow-stretch": {"rotary": True, "encoder": SAFE_FLOW, "jitter": STRETCH, **_QKV},
        "rotary-flow-gaps": {"rotary": True, "encoder": SAFE_FLOW, "jitter": GAPS, **_QKV},
        "flow": {"encoder": RANDOM_FLOW, **_QKV},
        "flow-stretch": {"encoder": FAR, "jitter": STRETCH, **_QKV},
        "flow-gaps": {"encoder": FAR, "jitter": GAPS, **_QKV},
        # the model's own rotary positions, which jitter does not move
        "built-in": {"encoder": {"kind": "none"}, **_KEPT},
        "built-in-flow-stretch": {"encoder": SAFE_FLOW, "jitter": STRETCH, **_KEPT},
    }
    names = {  # noqa: RUF012
        "rotary": "rotary",
        "rotary-stretch": "rotary, stretched",
        "rotary-flow": "rotary + flow",
        "rotary-flow-stretch": "rotary + flow, stretched",
        "rotary-flow-gaps": "rotary + flow, gaps",
        "flow": "flow",
        "flow-stretch": "flow, stretched",
        "flow-gaps": "flow, gaps",
        "built-in": "built-in rotary",
        "built-in-flow-stretch": "built-in rotary + flow, flow stretched",
    }
    flows = tuple(key for key in positions if "flow" in key)
    test_set = "valid"

    @property
    def anchors(self) -> str:
        return "Loss in nats per masked token, also of the tokens at some positions only."

    def base_settings(self, scale: Scale) -> dict[str, Any]:
        return read(config_file("mlm/lengths.yaml")) if scale == "small" else counting()

    def settings(self, request: ReproductionRequest) -> dict[str, dict[str, Any]]:
        """All runs start from one model, in the folder of the reproduction."""
        files = {}
        if request.scale == "smoke":
            files = {split: [str(request.folder / f"{split}.txt")] for split in ("train", "valid")}
        shared = {"model": {"name": str(request.folder / "model")}, "data": files}
        return {key: merge(own, shared) for key, own in super().settings(request).items()}

    def runs(self, request: ReproductionRequest, settings: Mapping[str, Mapping[str, Any]]) -> Runs:
        task = self.task_of(next(iter(settings.values())))
        assert isinstance(task, MaskedLMTask)
        if request.scale == "smoke":
            for split, first in (("train", 0), ("valid", 7)):
                write_text(request.folder / f"{split}.txt", _numbers(first))
        model = request.folder / "model"
        if not model.exists():
            print_text(request.console, f"writing a model with random weights to {model}")
            sizes = FreshModel() if request.scale == "small" else FreshModel(300, 1, 32, 2)
            sizes.write(model, _lines(task))
        runs = super().runs(request, settings)
        for key, own in settings.items():
            for run in runs[key]:
                self._test_shorter(own, run, request)
        return runs

    def _test_shorter(
        self, settings: Mapping[str, Any], run: RunFolder, request: ReproductionRequest
    ) -> None:
        """Test a model on inputs of the trained length, and of two and four times that too."""
        task = self.task_of(settings)
        assert isinstance(task, MaskedLMTask)
        for length in _lengths(task)[:-1]:
            name = _set_of(length)
            if name in run.scores().sets:
                continue
            shorter = _tested_on(task, length)
            model, tokenizer = shorter.load(run.model)
            valid = shorter.splits()["valid"]
            with expecting_long_inputs():
                evaluate(shorter, model, valid, tokenizer, run, name=name, console=request.console)

    def tables(self, task: AnyTask, runs: Runs) -> list[Table]:
        assert isinstance(task, MaskedLMTask)
        return [*super().tables(task, runs), self._by_length(task, runs)]

    def _by_length(self, task: MaskedLMTask, runs: Runs) -> Table:
        """The loss on inputs of several lengths, and by position in each."""
        columns: list[str] = []
        cells: list[list[Cell]] = [[] for _ in runs]
        *shorter, longest = _lengths(task)
        for length in (*shorter, longest):
            name = self.test_set if length == longest else _set_of(length)
            config = _tested_on(task, length).config
            for bin_name in config.bin_names() if config.bins else [""]:
                columns.append(f"{length} tokens" + (f", {bin_name}" if bin_name else ""))
                for row, each in zip(cells, runs.values(), strict=True):
                    found = scored(each, f"loss {bin_name}".strip(), test_set=name)
                    row.append(found and found.model_copy(update={"digits": 3}))
        return Table(
            title="Loss by length of the input and position in it",
            note=f"Trained on inputs of {task.config.max_length} tokens.",
            columns=["positions", *columns],
            rows=[[self.names[key], *row] for key, row in zip(runs, cells, strict=True)],
        )

    def figures(self, settings: Mapping[str, Mapping[str, Any]], runs: Runs) -> list[Figure]:
        task = self.task_of(next(iter(settings.values())))
        assert isinstance(task, MaskedLMTask)
        bins = task.config.bin_names()
        points = [(f"loss {name}", None) for name in bins]
        lines = [
            banded(self.names[key], each, points, test_set=self.test_set)
            for key, each in runs.items()
        ]
        return [
            Figure(
                title=f"Loss by position, trained on {task.config.max_length} tokens",
                x_label="position in the input, tokens",
                y_label="loss, nats per masked token",
                x=list(bins),
                series=lines,
            )
        ]


def _lengths(task: MaskedLMTask) -> list[int]:
    """The trained length, twice that, …, and the length of held-out blocks."""
    length, longest = task.config.max_length, task.length(training=False)
    lengths = []
    while length < longest:
        lengths.append(length)
        length *= 2
    return [*lengths, longest]


def _tested_on(task: MaskedLMTask, length: int) -> MaskedLMTask:
    """The same task with held-out blocks of another length."""
    bins = tuple(edge for edge in task.config.bins if edge < length)
    return MaskedLMTask(task.config.model_copy(update={"valid_length": length, "bins": bins}))


def _set_of(length: int) -> str:
    return f"valid-{length}"


def _lines(task: MaskedLMTask) -> Iterable[str]:
    """The training text."""
    data = task.config.data
    lines = read_text(data.train).lines
    return ChangedLines(lines, partial(from_wikitext, unknown=UNKNOWN)) if data.wikitext else lines


def _numbers(first: int, lines: int = 200) -> str:
    """Lines of numbers in order, each beginning at another one."""
    return "".join(
        " ".join(str((first + 13 * line + number) % 50) for number in range(40)) + "\n"
        for line in range(lines)
    )


def counting(updates: int = 60) -> dict[str, Any]:
    """Settings of a run on numbers in order, which trains within seconds."""
    return {
        "task": "masked_lm",
        "model": {"name": "model"},
        "data": {"train": [str(Path("train.txt"))], "valid": [str(Path("valid.txt"))]},
        "max_length": 16,
        "valid_length": 64,
        "bins": [16, 32],
        "training": {
            "part": "all",
            "updates": updates,
            "batch": 16,
            "lr": 0.01,
            "weight_decay": 0.01,
            "clip": 1.0,
            "evaluate_every": updates,
            "save_every": updates,
            "threads": 1,
        },
    }
