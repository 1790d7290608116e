"""What goes into the model and what comes out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from floater.errors import ConfigError
from floater.recipes import merge
from floater.tasks.events.config import EventsConfig
from floater.tasks.events.inputs import NOT_PREDICTED
from floater.tasks.events.model import EventModel
from floater.tasks.events.task import EventsTask, NextEvent
from floater.tasks.timed.attention import attention_by_distance
from floater.tasks.understanding.measured import MeasuredData
from floater.tasks.understanding.predicting import predict_all
from floater.tasks.understanding.problem import forward

from .files import sequences, write_files

FLOW = {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.5}


def world(
    folder: Path, factor: float = 1.0, **changes: Any
) -> tuple[EventsTask, MeasuredData, EventModel]:
    settings = merge(write_files(folder, factor=factor), {"positions": {"encoder": FLOW}})
    task = EventsTask(EventsConfig(**merge(settings, changes)))
    data = task.prepare(None)  # type: ignore[arg-type]
    torch.manual_seed(1)
    model = task.build_model(data).eval()
    assert isinstance(model, EventModel)
    with torch.no_grad():  # as after some training: every input matters
        for name, parameter in model.named_parameters():
            if "_head" in name or "gap_" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return task, data, model


@pytest.mark.parametrize("sites", ["input", "qkv"])
@torch.no_grad()
def test_a_sequence_in_a_batch_equals_the_sequence_alone(tmp_path: Path, sites: str) -> None:
    task, data, model = world(tmp_path, positions={"sites": sites})
    items = [data.valid[number] for number in range(len(data.valid))]
    together = task.predict(model, task.collate(None)(items))
    for number, item in enumerate(items):
        for name, alone in task.predict(model, task.collate(None)([item])).items():
            count = len(item["times"])
            # relative for gaps: a mean can be in the hundreds
            relative = 1e-5 if name in ("median", "mean") else 0.0
            torch.testing.assert_close(
                together[name][number, :count], alone[0], rtol=relative, atol=1e-5
            )


@pytest.mark.parametrize("learned", [None, "time", "features"])
@pytest.mark.parametrize("gap_inputs", [False, True])
@torch.no_grad()
def test_no_later_event_changes_an_earlier_prediction(
    tmp_path: Path, learned: str | None, gap_inputs: bool
) -> None:
    task, data, model = world(tmp_path, data={"gap_inputs": gap_inputs}, clock={"learned": learned})
    batch = task.collate(None)([data.train[0], data.train[1]])
    before = task.predict(model, batch)
    place = 2
    changed = {name: tensor.clone() for name, tensor in batch.items()}
    changed["times"][:, place + 1 :] += 1.7
    changed["gaps"][:, place + 1 :] += 0.9
    changed["types"][:, place + 1 :] = (changed["types"][:, place + 1 :] + 1) % 3
    after = task.predict(model, changed)
    for name in ("median", "mean", "types", "gaps"):  # targets are the old ones
        torch.testing.assert_close(
            after[name][:, : place + 1], before[name][:, : place + 1], rtol=0, atol=1e-6
        )
        assert not torch.allclose(after[name][:, place + 1], before[name][:, place + 1], atol=1e-4)


@torch.no_grad()
def test_real_times_matter_and_indices_do_not_see_them(tmp_path: Path) -> None:
    for times in ("real", "index"):
        task, data, model = world(tmp_path, positions={"times": times})
        batch = task.collate(None)([data.valid[0], data.valid[1]])
        before = forward(model, batch)[0]
        batch["times"] = batch["times"] * 1.5
        assert torch.equal(before, forward(model, batch)[0]) == (times == "index")


def scores(task: EventsTask, data: MeasuredData, model: EventModel) -> dict[str, float]:
    outputs = predict_all(task, model, data.valid, data.tokenizer)
    return task.scores(task.judge(data.splits["valid"], data.valid, outputs).table)


def test_another_unit_changes_the_likelihood_by_the_exact_change_of_variables(
    tmp_path: Path,
) -> None:
    factor = 60.0  # the same sequences in seconds, on a clock that counts them as before
    minutes = scores(*world(tmp_path / "a"))
    seconds = scores(*world(tmp_path / "b", factor))
    assert seconds["log_likelihood"] == pytest.approx(
        minutes["log_likelihood"] - math.log(factor), abs=1e-5
    )
    assert seconds["accuracy"] == minutes["accuracy"]
    assert seconds["mae"] == pytest.approx(factor * minutes["mae"], rel=1e-5)
    assert seconds["rmse"] == pytest.approx(factor * minutes["rmse"], rel=1e-5)


@pytest.mark.parametrize("given_type", [False, True])
@torch.no_grad()
def test_the_score_is_the_mean_log_density_of_every_event_after_the_first(
    tmp_path: Path, given_type: bool
) -> None:
    task, data, model = world(tmp_path, head={"given_type": given_type})
    known, total, errors, count = data.tokenizer, 0.0, 0.0, 0
    raw = {entry["id"]: entry for entry in sequences()}
    for number, name in enumerate(data.splits["valid"].ids()):
        batch = task.collate(None)([data.valid[number]])
        states = model.states(
            *(batch[key] for key in ("times", "types", "gaps", "attention_mask"))
        )[0]
        types = model.log_types(states)
        torch.testing.assert_close(types.exp().sum(-1), torch.ones(len(types)))
        gaps = np.maximum(np.diff(raw[name]["times"]), known.min_gap)
        for event, gap in enumerate(gaps):
            kind = known.types.index(raw[name]["types"][event + 1])
            density = model.gaps_given(states[event], torch.tensor(kind))
            total += float(types[event, kind] + density.log_prob(torch.tensor(gap)))
            any_type = model.gaps_of_any(states[event], types[event])
            weights = torch.exp(any_type.log_weights).sum()
            assert float(weights) == pytest.approx(1, abs=1e-5)
            errors += abs(float(any_type.median()) - np.diff(raw[name]["times"])[event])
            count += 1
    found = scores(task, data, model)
    assert found["log_likelihood"] == pytest.approx(total / count, abs=1e-4)
    assert found["mae"] == pytest.approx(errors / count, rel=1e-4)
    assert float(task.loss(model, task.collate(None)([data.valid[0]]))) > -1e3


def test_gaps_of_zero_count_as_the_shortest_one_and_the_run_says_so(tmp_path: Path) -> None:
    task, data, model = world(tmp_path, data={"split_seed": 1})
    gaps = np.concatenate([data.train.gaps(number) for number in range(len(data.train))])
    assert data.tokenizer.min_gap == gaps[gaps > 0].min()
    assert "q0" in data.splits["train"].ids()
    assert data.train.short_gaps() == 1
    assert "1 training gaps are shorter than" in task.warnings(model, data)[0]


def test_long_sequences_are_cut_so_that_every_event_is_predicted_once(tmp_path: Path) -> None:
    task, data, model = world(tmp_path, data={"max_events": 4})
    whole = sum(len(np.diff(entry["times"])) for entry in sequences())
    pieces = [task.encode(split, data.tokenizer, training=False) for split in data.splits.values()]
    assert max(int(piece.lengths().max()) for piece in pieces) == 4
    batches = [task.collate(None)([piece[i] for i in range(len(piece))]) for piece in pieces]
    assert sum(int(batch["labels"].ne(NOT_PREDICTED).sum()) for batch in batches) == whole
    assert any("are cut" in line for line in task.warnings(model, data))
    outputs = predict_all(task, model, data.valid, data.tokenizer)
    found = task.judge(data.splits["valid"], data.valid, outputs)
    ids = data.splits["valid"].ids()
    raw = {entry["id"]: entry for entry in sequences()}
    assert found.table[:, 4].tolist() == [len(raw[name]["times"]) - 1 for name in ids]
    assert [len(found.values[name]["types"]) for name in ids] == found.table[:, 4].tolist()


@torch.no_grad()
def test_the_next_event_follows_the_last_one_of_each_sequence(tmp_path: Path) -> None:
    task, data, model = world(tmp_path)
    batch = task.collate(None)([data.valid[0], data.valid[3]])
    found = NextEvent(task.config).predict(model, batch)
    every = task.predict(model, batch)
    ends = batch["attention_mask"].sum(1) - 1
    rows = torch.arange(2)
    torch.testing.assert_close(found["median"], every["median"][rows, ends])
    assert torch.equal(found["log_types"].argmax(-1), every["chosen"][rows, ends])


@torch.no_grad()
def test_attention_to_the_past_is_measured_against_equal_attention_to_it(tmp_path: Path) -> None:
    task, data, model = world(tmp_path, positions={"encoder": {"kind": "none"}})
    for name, parameter in model.named_parameters():
        if ".query." in name:
            parameter.zero_()
    batch = task.collate(None)([data.valid[i] for i in range(4)])
    means = attention_by_distance(model, [batch], np.array([0.0, 0.2, 0.4, 50.0]))
    assert means == pytest.approx([1, 1, 1], abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"train": "a.jsonl"}}, "`train`, `valid` and `test` must be given together"),
        ({"data": {"sequences": None}}, "give one of `sequences`"),
        ({"data": {"synthetic": {}}}, "give one of `sequences`"),
        ({"data": {"max_events": 1}}, "max_events"),
        ({"positions": {"encoder": {"kind": "learned"}}}, "`times: real` needs an encoder"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        EventsConfig(**merge(write_files(tmp_path), changes))
