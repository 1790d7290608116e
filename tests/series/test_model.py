"""What goes into the model and what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from floater.errors import ConfigError
from floater.recipes import merge
from floater.tasks.series.config import SeriesConfig
from floater.tasks.series.model import SeriesModel
from floater.tasks.series.task import SeriesTask
from floater.tasks.understanding.measured import MeasuredData
from floater.tasks.understanding.problem import forward

from .files import write_files

FLOW = {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.5}


def world(folder: Path, **changes: Any) -> tuple[SeriesTask, MeasuredData, SeriesModel]:
    task = SeriesTask(SeriesConfig(**merge(write_files(folder), changes)))
    data = task.prepare(None)  # type: ignore[arg-type]
    torch.manual_seed(1)
    model = task.build_model(data).eval()
    assert isinstance(model, SeriesModel)
    return task, data, model


@pytest.mark.parametrize("tokens", ["observations", "times"])
@pytest.mark.parametrize("sites", ["input", "qkv"])
@torch.no_grad()
def test_a_series_in_a_batch_equals_the_series_alone(
    tmp_path: Path, tokens: str, sites: str
) -> None:
    task, data, model = world(
        tmp_path, data={"tokens": tokens}, positions={"encoder": FLOW, "sites": sites}
    )
    collate = task.collate(data.tokenizer)
    items = [data.valid[number] for number in range(len(data.valid))]
    together = forward(model, collate(items))
    assert together.std(0).min() > 1e-4
    for number, item in enumerate(items):
        torch.testing.assert_close(
            together[number], forward(model, collate([item]))[0], rtol=0, atol=1e-5
        )


@torch.no_grad()
def test_real_times_matter_and_indices_do_not_see_them(tmp_path: Path) -> None:
    for times in ("real", "index"):
        task, data, model = world(tmp_path, positions={"encoder": FLOW, "times": times})
        batch = task.collate(data.tokenizer)([data.valid[0], data.valid[1]])
        before = forward(model, batch)
        batch["times"] = batch["times"] * 1.5
        assert torch.equal(before, forward(model, batch)) == (times == "index")


@torch.no_grad()
def test_merged_tokens_hold_every_observation_of_their_time(tmp_path: Path) -> None:
    task, data, _ = world(tmp_path, data={"tokens": "times"})
    item = data.train[0]
    batch = task.collate(data.tokenizer)([item])
    distinct = np.unique(item["times"])
    assert data.train.lengths()[0] == 1 + len(distinct) == batch["times"].shape[1]
    assert batch["observed"].sum() == len(item["times"])
    for time, variable, value in zip(item["times"], item["variables"], item["values"], strict=True):
        place = 1 + int(np.searchsorted(distinct, time))
        assert batch["values"][0, place, variable] == value
    assert not batch["observed"][0, 0].any()


@pytest.mark.parametrize("tokens", ["observations", "times"])
@torch.no_grad()
def test_asked_values_are_hidden_and_do_not_see_each_other(tmp_path: Path, tokens: str) -> None:
    task, data, model = world(
        tmp_path,
        data={"tokens": tokens, "static": [], "categories": []},
        head={"kind": "imputation", "hidden_share": 0.4},
        positions={"encoder": FLOW},
    )
    collate = task.collate(data.tokenizer)
    item = data.valid[0]
    asked = np.flatnonzero(item["asked"])
    assert len(asked) == round(0.4 * len(item["times"]))
    outputs = forward(model, collate([item]))[0].numpy()
    predicted, true = data.valid.answers(0, outputs)
    assert np.array_equal(true, item["values"][asked])
    changed = {**item, "values": item["values"].copy()}
    changed["values"][asked] += 7.0  # the truth is not an input
    assert np.array_equal(outputs, forward(model, collate([changed]))[0].numpy())
    for number, place in enumerate(asked):  # each one alone, among the observations that are seen
        keep = ~item["asked"]
        keep[place] = True
        names = ("times", "variables", "values", "asked")
        alone = {**item, **{name: item[name][keep] for name in names}}
        batch = collate([alone])
        answer = forward(model, batch)[batch["asked"]]
        torch.testing.assert_close(float(answer), float(predicted[number]), rtol=0, atol=1e-5)


def test_hidden_observations_change_with_the_epoch_in_training_only(tmp_path: Path) -> None:
    _, data, _ = world(tmp_path, data={"static": [], "categories": []}, head={"kind": "imputation"})
    for inputs, change in ((data.train, True), (data.valid, False)):
        draws = []
        for epoch in range(4):
            inputs.set_epoch(epoch)
            draws.append(tuple(np.flatnonzero(inputs[0]["asked"])))
        assert (len(set(draws)) > 1) == change


def test_forecasts_are_asked_after_a_time_from_what_is_before(tmp_path: Path) -> None:
    task, data, _ = world(
        tmp_path,
        data={"static": [], "categories": []},
        head={"kind": "forecasting", "after": 250},
    )
    for number in range(len(data.train)):
        item = data.train[number]
        assert np.array_equal(item["asked"], item["times"] * 60 > 250)
        assert item["asked"].any()
        assert not item["asked"].all()
    assert list(task.measures) == ["mse", "mae"]
    assert not task.more_is_better


def test_observations_are_dropped_in_training_only_and_anew_in_every_epoch(tmp_path: Path) -> None:
    _, data, _ = world(tmp_path, data={"drop": 0.4})
    whole = data.train.lengths().sum() - len(data.train)
    counts, draws = [], []
    for epoch in range(5):
        data.train.set_epoch(epoch)
        items = [data.train[number] for number in range(len(data.train))]
        counts.append(sum(len(item["times"]) for item in items) / whole)
        draws.append(tuple(items[0]["times"]))
    assert np.mean(counts) == pytest.approx(0.6, abs=0.06)
    assert len(set(draws)) > 1
    lengths = [1 + len(data.valid[number]["times"]) for number in range(len(data.valid))]
    assert lengths == data.valid.lengths().tolist()


@pytest.mark.parametrize("keep", ["last", "even"])
def test_long_series_are_cut_and_the_run_says_so(tmp_path: Path, keep: str) -> None:
    task, data, model = world(tmp_path, data={"max_observations": 5, "keep": keep})
    assert data.train.lengths().max() == 6
    rows = data.train.rows(0)
    whole = np.arange(data.train._first[0], data.train._last[0])
    assert len(rows) == 5
    assert rows[-1] == whole[-1]
    assert (rows[0] == whole[0]) == (keep == "even")
    (line,) = task.warnings(model, data)
    assert "have more than 5 observations (`max_observations`)" in line


def test_classes_can_be_balanced(tmp_path: Path) -> None:
    task, data, model = world(tmp_path, head={"balance": True})
    data.tokenizer.frequencies[:] = [1, 3]
    model.config.prepared["frequencies"] = [1, 3]
    weights = task._weights(model, torch.zeros(1, 2))
    assert weights is not None
    assert weights.tolist() == pytest.approx([2, 2 / 3])


def test_learned_clocks_start_as_no_clock_and_get_gradients(tmp_path: Path) -> None:
    outputs = []
    for learned in (None, "time", "features"):
        task, data, model = world(
            tmp_path, clock={"learned": learned}, positions={"encoder": FLOW, "sites": "qkv"}
        )
        batch = task.collate(data.tokenizer)([data.train[number] for number in range(4)])
        scores = forward(model, batch)
        outputs.append(scores.detach())
        task.loss(model, batch).backward()
        if model.clock is not None:
            for name, parameter in model.clock.named_parameters():
                assert parameter.grad is not None, name
                assert bool(parameter.grad.abs().sum() > 0), name
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(outputs[2], outputs[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": {"encoder": {"kind": "learned"}}}, "`times: real` needs an encoder"),
        ({"positions": {"jitter": {"offset": 3}}}, "`jitter` moves indices"),
        ({"positions": {"encoder": None}}, "for no positions, write {kind: none}"),
        (
            {"clock": {"learned": "time"}, "positions": {"times": "index"}},
            r"`clock\.learned` needs `positions` with `times: real`",
        ),
        ({"head": {"kind": "forecasting"}}, "`after` must be given for forecasting"),
        (
            {"head": {"kind": "imputation"}, "clock": {"learned": "features"}},
            "must not be used for forecasting and imputation",
        ),
        ({"head": {"kind": "imputation"}, "data": {"drop": 0.1}}, "`data.drop` must be 0 for"),
        ({"data": {"labels": None, "static": [], "categories": []}}, "`data.labels` must be given"),
        ({"data": {"folds": 3, "fold": 3}}, "`fold` must be less than `folds` = 3, but is 3"),
        ({"data": {"synthetic": {}}}, "give either `observations`, a file, or `synthetic`"),
        ({"model": {"dim": 30, "heads": 4}}, "`dim` must be a multiple of `heads` = 4"),
        ({"compare": {"variants": {"a": {"site": "x"}}}}, r"compare\.variants\.a: .* no key"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SeriesConfig(**merge(write_files(tmp_path), changes))
