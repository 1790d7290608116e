"""`floater reproduce series`: every encoder, on very little data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from floater.errors import ArgumentError
from floater.experiments.base import ReproductionRequest
from floater.experiments.reproduce import ITEMS, reproduce
from floater.experiments.series import phases
from floater.experiments.timed import NAMES, POSITIONS
from floater.runs.results import Results
from floater.tasks import task_from
from floater.tasks.timed.attention import attention_by_distance
from floater.tasks.timed.task import TimedTask

QUIET = Console(quiet=True)
FEW = (
    "training.updates=3",
    "training.evaluate_every=3",
    "training.save_every=3",
    "data.synthetic.series=60",
    "compare.draws=20",
)


@pytest.mark.slow
def test_a_table_has_every_asked_variant_paired_tests_and_figures_in_time(tmp_path: Path) -> None:
    keys = ("sinusoidal", "flow-input", "learned-index")
    found = reproduce(
        "series", "smoke", tmp_path, seeds=[0], workers=1, console=QUIET, keys=keys, overrides=FEW
    )
    assert found is not None
    assert Results.read(tmp_path / "series-smoke") == found
    assert [row[0] for row in found.tables[0].rows] == [NAMES[key] for key in keys]
    assert [row[0] for row in found.tables[1].rows] == [NAMES[key] for key in keys[1:]]
    attention, path = found.figures
    assert [line.name for line in attention.series] == [NAMES[key] for key in keys]
    assert [line.name for line in path.series] == [NAMES["sinusoidal"], NAMES["flow-input"]]
    assert path.series[0].y[0] == 0
    assert "Best flow on real times: flow at the input" in found.summary[0]
    assert (tmp_path / "series-smoke" / "report.html").stat().st_size > 10_000


def test_every_variant_is_valid_at_both_scales_and_mistakes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATER_DATA", "data")
    assert POSITIONS.keys() == NAMES.keys()
    item = ITEMS["series"]

    def request(scale: str, *keys: str, seeds: tuple[int, ...] = (0,)) -> ReproductionRequest:
        return ReproductionRequest(scale, tmp_path, seeds, 1, QUIET, keys)  # type: ignore[arg-type]

    for scale in ("smoke", "small"):
        checked = item.check(request(scale))
        assert checked is not None
        assert len(checked.tables[0].rows) == len(POSITIONS)
    with pytest.raises(ArgumentError, match="`--scale` must be smoke or small for series"):
        item.check(request("paper"))
    with pytest.raises(ArgumentError, match=r"`--variants` must be among sinusoidal, .* 'x'"):
        item.check(request("smoke", "x"))
    with pytest.raises(ArgumentError, match=r"`--seeds` must be folds, 0 to 4, .* has 7"):
        item.reproduce(request("small", "none", seeds=(7,)))


def test_attention_is_measured_against_equal_attention() -> None:
    settings = {**phases(1), "positions": {"encoder": {"kind": "none"}}}
    task = task_from(settings)
    assert isinstance(task, TimedTask)
    data = task.prepare(None)  # type: ignore[arg-type]
    model = task.build_model(data).eval()
    with torch.no_grad():  # all queries are zero, so that all tokens get the same attention
        for name, parameter in model.named_parameters():
            if ".query." in name:
                parameter.zero_()
    batches = [task.collate(data.tokenizer)([data.valid[i] for i in range(5)])]
    edges = np.array([0.0, 0.5, 1.0, 10.0, 20.0])
    means = attention_by_distance(model, batches, edges)  # type: ignore[arg-type]
    assert means[:3] == pytest.approx([1, 1, 1], abs=1e-5)
    assert means[3] is None
