"""Position tables that go on past their last row."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import GPT2Config, GPT2DoubleHeadsModel

import floater
from floater.attachments.layouts import LAYOUTS
from floater.encoders import TableFlow
from floater.encoders.tables import TABLE_SCALINGS
from floater.errors import ArgumentError, AttachmentError, LayoutError

from .attach_models import LIMIT, MOVING, VOCABULARY, batch, check_decoding, logits, make

ENCODERS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "albert",
    "mpnet",
    "bart",
)
TABLES = (*ENCODERS, "gpt2", "opt")
SINGLE = tuple(name for name in TABLES if name != "bart")
KEEPING = ("waves", "cycle", "hierarchy")
"""Scalings that leave the first positions where they are."""


def extend(name: str, *, move: bool = True, **settings: Any) -> tuple[Any, floater.Attachment]:
    """A tiny model for twice its length, with a flow that is not zero."""
    model = make(name)
    attached = floater.extend(model, 2 * positions(model), **settings)
    if move:
        shake(attached)
    return model, attached


def positions(model: Any) -> int:
    """Number of positions of a tiny model."""
    return LIMIT - (2 if LAYOUTS[model.config.model_type].numbering == "padding" else 0)


@torch.no_grad()
def shake(attached: floater.Attachment) -> None:
    torch.manual_seed(7)
    for weight in attached.parameters():
        weight.add_(0.3 * torch.randn_like(weight))


def long_batch(name: str, length: int) -> dict[str, Tensor]:
    torch.manual_seed(3)
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (2, length))}
    if name == "bart":
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :6]
    return inputs


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("scaling", KEEPING)
@pytest.mark.parametrize("name", TABLES)
def test_a_longer_table_leaves_short_inputs_unchanged_to_the_bit(
    name: str, scaling: str, autocast: bool
) -> None:
    inputs = batch(name)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        before = logits(make(name), inputs)
        model, attached = extend(name, move=False, scaling=scaling)
        assert torch.equal(logits(model, inputs), before)
        shake(attached)
        assert (logits(model, inputs) - before).abs().max() > 1e-4
        with attached.disabled():
            assert torch.equal(logits(model, inputs), before)
        attached.detach()
        assert torch.equal(logits(model, inputs), before)


@pytest.mark.parametrize(
    ("name", "scaling"),
    [(name, scaling) for name in TABLES for scaling in KEEPING]
    + [(name, scaling) for name in ENCODERS for scaling in ("linear", "group")],
)
def test_exact_extensions_keep_short_inputs_after_training(name: str, scaling: str) -> None:
    inputs = batch(name)
    with torch.no_grad():
        before = logits(make(name), inputs)
        model, _ = extend(name, scaling=scaling, exact=True)
        assert torch.equal(logits(model, inputs), before)
        far = long_batch(name, positions(model) + 15)
        assert logits(model, far).isfinite().all()


@pytest.mark.parametrize("scaling", ["linear", "group", "waves"])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_short_row_beside_a_long_one_equals_the_row_alone(name: str, scaling: str) -> None:
    model, _ = extend(name, scaling=scaling, exact=True)
    inputs = long_batch(name, positions(model) + 15)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, 12:] = 0
    inputs["input_ids"][1, 12:] = model.config.pad_token_id
    with torch.no_grad():
        beside = logits(model, {**inputs, "attention_mask": mask})[1, :12]
        alone = logits(model, {"input_ids": inputs["input_ids"][1:, :12]})[0]
        untouched = logits(make(name), {"input_ids": inputs["input_ids"][1:, :12]})[0]
    torch.testing.assert_close(beside, alone, rtol=1e-5, atol=1e-6)
    assert torch.equal(alone, untouched)


def by_hand(rows: np.ndarray, scaling: str, length: int) -> np.ndarray:
    """The positions of a fixed scaling, one by one."""
    count, factor = len(rows), length / len(rows)
    if scaling == "linear":
        places = np.minimum(np.arange(length) / factor, count - 1)
        columns = [np.interp(places, np.arange(count), column) for column in rows.T]
        return np.stack(columns, 1)
    if scaling == "group":
        return np.stack([rows[int(place / factor)] for place in range(length)])
    if scaling == "cycle":
        return np.stack([rows[place % count] for place in range(length)])
    basis = (rows - 0.4 * rows[0]) / 0.6
    return np.stack(
        [0.4 * basis[place // count] + 0.6 * basis[place % count] for place in range(length)]
    )


@pytest.mark.parametrize("scaling", ["linear", "group", "cycle", "hierarchy"])
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_fixed_scalings_equal_a_longer_table_made_by_hand(name: str, scaling: str) -> None:
    model, attached = extend(name, move=False, scaling=scaling, learned=False)
    length = 2 * positions(model)
    assert attached.num_parameters() == 0
    inputs = long_batch(name, length)
    with torch.no_grad():
        found = logits(model, inputs)
    plain = make(name)
    embeddings = plain.base_model.embeddings
    table = embeddings.position_embeddings.weight.detach()
    offset = len(table) - positions(model)
    longer = by_hand(table[offset:].double().numpy(), scaling, length)
    embeddings.position_embeddings.weight = torch.nn.Parameter(
        torch.cat((table[:offset], torch.tensor(longer).float()))
    )
    ids = torch.arange(offset, offset + length).expand(2, -1)
    types = {} if name == "distilbert" else {"token_type_ids": torch.zeros_like(ids)}
    with torch.no_grad():
        expected = logits(plain, {**inputs, "position_ids": ids, **types})
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def waving(frequencies: list[float], rows: int, dim: int) -> np.ndarray:
    """A table of waves, at any number of rows."""
    generator = np.random.default_rng(0)
    angles = np.arange(rows)[:, None] * np.array(frequencies)
    waves = np.concatenate((np.ones((rows, 1)), np.cos(angles), np.sin(angles)), 1)
    return waves @ generator.normal(size=(waves.shape[1], dim))


def test_waves_continue_a_table_that_is_made_of_them() -> None:
    frequencies = [0.03, 0.2, 1.1]
    path = torch.tensor(waving(frequencies, 600, 24))
    config = floater.TableFlowConfig(waves=3, factor=3.0).fitted_to(path[:200])
    assert config.frequencies == pytest.approx(frequencies, rel=1e-6)
    encoder = config.build(1, 24).double()
    encoder.fit(path[:200])
    table = encoder.table(600)[:, 0].detach()
    assert not table[:200].any()  # the rows themselves stay in the model
    assert (table[200:] - path[200:]).abs().max() < 1e-3 * path.abs().max()


def sinusoid(rows: int, dim: int, *, steps: int, in_turn: bool, begin: int = 0) -> Tensor:
    """A sinusoid whose frequencies fall by 10,000 within a number of steps."""
    frequencies = 1e4 ** -(torch.arange(dim // 2, dtype=torch.float64) / steps)
    angles = torch.outer(torch.arange(begin, begin + rows, dtype=torch.float64), frequencies)
    if in_turn:
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    return torch.cat((angles.sin(), angles.cos()), 1)


@pytest.mark.parametrize("steps", [11, 12])
@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize(("begin", "dtype"), [(0, torch.float32), (2, torch.float16)])
def test_a_sinusoid_goes_on_as_it_began(
    steps: int, in_turn: bool, begin: int, dtype: torch.dtype
) -> None:
    whole = 3 * sinusoid(240, 24, steps=steps, in_turn=in_turn, begin=begin)
    rows = whole[:80].to(dtype).float()
    config = floater.TableFlowConfig(factor=3.0, learned=False).fitted_to(rows)
    assert config.frequencies is not None
    assert len(config.frequencies) == 12
    encoder = config.build(1, 24)
    encoder.fit(rows)
    found = encoder.all_waves(240)[80:].double()
    torch.testing.assert_close(found, whole[80:], rtol=0, atol=5e-3)


def test_a_table_that_is_almost_a_sinusoid_is_not_one() -> None:
    rows = sinusoid(80, 24, steps=12, in_turn=False).float()
    rows[40, 3] += 0.1
    config = floater.TableFlowConfig(factor=3.0, waves=4).fitted_to(rows)
    assert config.frequencies is not None
    assert len(config.frequencies) <= 4


def test_waves_of_a_random_table_stay_bounded() -> None:
    torch.manual_seed(0)
    rows = torch.randn(64, 16)
    encoder = floater.TableFlowConfig(factor=100.0, learned=False).fitted_to(rows).build(1, 16)
    encoder.fit(rows)
    far = encoder.table(6400)[64:, 0]
    assert far.norm(dim=-1).max() < 2 * rows.norm(dim=-1).max()


def test_an_approximated_table_lies_on_one_path() -> None:
    """With `approximate` the rows of the table come from the waves as well."""
    rows = torch.tensor(waving([0.05, 0.4], 80, 8)).float()
    config = floater.TableFlowConfig(waves=2, factor=2.0, approximate=True, learned=False)
    encoder = config.fitted_to(rows).build(1, 8)
    encoder.fit(rows)
    assert (encoder.table(160)[:80, 0] - rows).abs().max() < 1e-3 * rows.abs().max()


@pytest.mark.parametrize("scaling", KEEPING)
@pytest.mark.parametrize("name", SINGLE)
def test_a_merged_model_is_a_plain_one(name: str, scaling: str, tmp_path: Path) -> None:
    model, attached = extend(name, scaling=scaling)
    inputs = long_batch(name, 2 * positions(model))
    with torch.no_grad():
        before = logits(model, inputs)
        attached.merge()
        assert floater.attachment(model) is None
        assert torch.equal(logits(model, inputs), before)
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path).eval()
        assert not hasattr(loaded.config, "floater")
        assert torch.equal(logits(loaded, inputs), before)
        # types and positions of a shorter input come from buffers
        short = {"input_ids": inputs["input_ids"][:, :7]}
        assert torch.equal(logits(loaded, short), logits(model, short))


@pytest.mark.parametrize("baked", [False, True])
@pytest.mark.parametrize("scaling", TABLE_SCALINGS)
@pytest.mark.parametrize("name", ["bert", "roberta", "bart"])
def test_longer_tables_are_saved_baked_and_loaded(
    name: str, scaling: str, baked: bool, tmp_path: Path
) -> None:
    model, attached = extend(name, scaling=scaling)
    length = 2 * positions(model)
    inputs = long_batch(name, length)
    with torch.no_grad():
        before = logits(model, inputs)
        if baked:
            attached.bake(length)
        floater.save_pretrained(model, tmp_path)
        loaded = floater.from_pretrained(type(model), tmp_path)
        found = floater.attachment(loaded)
        assert found is not None
        assert found.baked_length == (length if baked else None)
        torch.testing.assert_close(logits(loaded, inputs), before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_decoding_past_the_table_equals_the_full_forward(name: str) -> None:
    model = make(name).double()
    shake(floater.extend(model, 3 * LIMIT, trained=12))
    check_decoding(name, model, tokens=20)


def test_only_what_lies_past_the_table_learns_with_exact() -> None:
    model, attached = extend("bert", move=False, exact=True)
    for length, learns in ((positions(model), False), (positions(model) + 5, True)):
        attached.zero_grad()
        model.train()
        logits(model, long_batch("bert", length)).pow(2).sum().backward()
        last: Any = attached.encoders["table"].flow.dynamics.second.weight.grad  # type: ignore[union-attr]
        assert bool(last.abs().max() > 0) == learns


def test_tokens_between_two_rows_are_interpolated() -> None:
    model, attached = extend("bert", move=False)
    table = model.base_model.embeddings.position_embeddings
    ids = torch.tensor([[5, 6, 7]])
    found: list[Tensor] = []
    table.register_forward_hook(lambda module, inputs, output: found.append(output))
    with torch.no_grad(), attached.at([0.0, 0.25, 0.3]):  # places 0, 2.5 and 3
        model(input_ids=ids)
    rows = table.weight
    expected = torch.stack((rows[0], (rows[2] + rows[3]) / 2, rows[3]))
    torch.testing.assert_close(found[0][0], expected, rtol=1e-5, atol=1e-6)


def test_short_windows_train_far_positions() -> None:
    model, attached = extend("bert", move=False)
    attached.jitter = floater.TimeJitter(gaps=1, until=2 * LIMIT)
    model.train()
    before = attached.site_tables(2 * LIMIT)
    optimiser = torch.optim.AdamW(attached.parameters(), lr=0.01)
    for _ in range(3):
        inputs = batch("bert", rows=8)
        loss = model(**inputs, labels=inputs["input_ids"]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    after = attached.site_tables(2 * LIMIT)
    assert before is not None
    assert after is not None
    assert (after - before)[-1].abs().max() > 0
    assert attached.trained_range["encoder"] > 0.1 * LIMIT


def test_a_table_beside_a_flow_at_the_projections() -> None:
    inputs = batch("bert")
    with torch.no_grad():
        before = logits(make("bert"), inputs)
        model = make("bert")
        table = floater.TableFlowConfig(factor=2.0)
        attached = floater.attach(model, floater.FlowConfig(), table=table)
        assert torch.equal(logits(model, inputs), before)
        assert sorted(attached.encoders) == ["all", "table"]
        assert logits(model, long_batch("bert", 2 * LIMIT)).shape[1] == 2 * LIMIT
        described = attached.describe()
        assert described["table"]["factor"] == 2.0
        with pytest.raises(AttachmentError, match="alone"):
            attached.merge()


def test_a_copy_of_an_extended_model_stands_alone() -> None:
    model, attached = extend("bert")
    copied = copy.deepcopy(model)
    inputs = long_batch("bert", 2 * LIMIT)
    with torch.no_grad():
        expected = logits(model, inputs)
        attached.detach()
        assert torch.equal(logits(copied, inputs), expected)


@pytest.mark.parametrize(
    ("name", "length", "settings", "message"),
    [
        ("bert", LIMIT, {}, "larger than the 40 positions"),
        ("bert", 80, {"scaling": "yarn"}, "'waves', 'linear', 'group', 'cycle', 'hierarchy'"),
        ("llama", 80, {"scaling": "waves"}, "'none', 'linear', 'ntk', 'yarn', 'log'"),
        ("bert", 80, {"trained": 41}, "at most the 40 positions"),
        ("bert", 80.0, {}, "number of tokens"),
        ("gpt2", 80, {"scaling": "linear", "exact": True}, "one token after the other"),
    ],
)
def test_extensions_that_make_no_sense_are_refused(
    name: str, length: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        floater.extend(make(name), length, **settings)


@pytest.mark.parametrize("name", ["t5", "marian", "vit"])
def test_models_without_a_table_are_refused(name: str) -> None:
    with pytest.raises(LayoutError, match="a position table"):
        floater.extend(make(name), 80)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("bart", {}, "encoder-decoder"),
        ("bert", {"scaling": "linear", "exact": True}, "do not depend on the length"),
    ],
)
def test_what_no_table_can_hold_is_not_merged(
    name: str, settings: dict[str, Any], message: str
) -> None:
    _, attached = extend(name, **settings)
    with pytest.raises(AttachmentError, match=message):
        attached.merge()


def test_other_attachments_are_not_merged() -> None:
    attached = floater.attach(make("bert"), MOVING)
    with pytest.raises(AttachmentError, match='sites="table"'):
        attached.merge()


def test_the_settings_of_a_table_are_checked() -> None:
    model = make("bert")
    with pytest.raises(ArgumentError, match="go together"):
        floater.attach(model, floater.TableFlowConfig(), sites="qkv")
    with pytest.raises(ArgumentError, match="go together"):
        floater.attach(model, floater.FlowConfig(), sites="table")
    with pytest.raises(ArgumentError, match='positions="keep"'):
        floater.attach(model, floater.TableFlowConfig(), sites="table", positions="replace")
    with pytest.raises(floater.FloaterError, match="approximate"):
        floater.attach(model, floater.TableFlowConfig(approximate=True, exact=True), sites="table")
    with pytest.raises(floater.FloaterError, match="must be left out"):
        floater.Sites("table", blocks=(1,))
    assert floater.attachment(model) is None


def test_an_encoder_of_tables_needs_a_table() -> None:
    with pytest.raises(floater.FloaterError, match="not set"):
        floater.TableFlowConfig().build(1, 8)
    encoder = floater.TableFlowConfig(length=8, scaling="cycle").build(1, 8)
    assert isinstance(encoder, TableFlow)


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta", "camembert", "mpnet"])
@pytest.mark.parametrize("first", [0, 1, 2, 7])
def test_rows_that_a_caller_chooses_are_the_models_own(name: str, first: int) -> None:
    """`position_ids` of RoBERTa are rows of its table, also those before the first token's."""
    ids = long_batch(name, 10)["input_ids"]
    inputs = {"input_ids": ids, "position_ids": torch.arange(first, first + 10).unsqueeze(0)}
    with torch.no_grad():
        before = logits(make(name), inputs)
        model, attached = extend(name, exact=True)
        assert torch.equal(logits(model, inputs), before)
        attached.merge()
        assert torch.equal(logits(model, inputs), before)


@pytest.mark.parametrize("name", ["bert", "roberta", "mpnet"])
def test_masked_places_of_embeddings_keep_their_positions(name: str) -> None:
    torch.manual_seed(0)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 5:] = 0
    inputs = {"inputs_embeds": torch.randn(2, 12, 16), "attention_mask": mask}
    with torch.no_grad():
        before = logits(make(name), inputs)
        model, _ = extend(name, exact=True)
        assert torch.equal(logits(model, inputs), before)


def test_several_inputs_per_example() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=20)
    model = GPT2DoubleHeadsModel(config).eval()
    ids = torch.randint(3, VOCABULARY, (2, 3, 9))
    with torch.no_grad():
        before = model(input_ids=ids).logits
        floater.extend(model, 40)
        assert torch.equal(model(input_ids=ids).logits, before)
        assert model(input_ids=ids.repeat(1, 1, 4)).logits.shape[2] == 36


def test_only_the_trained_rows_determine_the_waves() -> None:
    path = torch.tensor(waving([0.05, 0.4], 40, 16)).float()
    frequencies = []
    for seed in (0, 1):
        model = make("bert")
        torch.manual_seed(seed)
        rows = torch.cat((path[:24], torch.randn(16, 16)))
        model.base_model.embeddings.position_embeddings.weight.data.copy_(rows)
        config: Any = floater.extend(model, 80, trained=24).config
        frequencies.append(config.frequencies)
    assert frequencies[0] == pytest.approx(frequencies[1], rel=1e-6)


def test_what_peft_trained_is_merged() -> None:
    model, attached = extend("bert", move=False)
    settings = LoraConfig(target_modules=["query", "value"], modules_to_save=["floater"])
    adapted = get_peft_model(model, settings)
    live = floater.attachment(adapted)
    assert live is not None
    assert live is not attached
    shake(live)
    whole = adapted.merge_and_unload()
    inputs = long_batch("bert", 2 * LIMIT)
    with torch.no_grad():
        expected = logits(whole, inputs)
        attached.merge()
        assert torch.equal(logits(whole, inputs), expected)


def test_a_model_with_lora_is_extended() -> None:
    model = make("bert")
    adapted = get_peft_model(model, LoraConfig(target_modules=["query"]))
    floater.extend(adapted, 2 * LIMIT)
    with torch.no_grad():
        assert logits(adapted, long_batch("bert", 2 * LIMIT)).isfinite().all()


@pytest.mark.parametrize("end", ["merge", "detach"])
def test_an_attachment_that_was_removed_is_not_merged_again(end: str) -> None:
    model, attached = extend("bert")
    getattr(attached, end)()
    rows = len(model.base_model.embeddings.position_embeddings.weight)
    with pytest.raises(AttachmentError, match="merged or detached before"):
        attached.merge()
    assert len(model.base_model.embeddings.position_embeddings.weight) == rows


@pytest.mark.parametrize("scaling", ["linear", "group"])
def test_inputs_past_the_extension_are_refused_where_rows_would_repeat(scaling: str) -> None:
    model, _ = extend("bert", move=False, scaling=scaling)
    with torch.no_grad(), pytest.raises(floater.FloaterError, match="extended to 80 positions"):
        logits(model, long_batch("bert", 2 * LIMIT + 1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("scaling", ["waves", "cycle"])
def test_damaged_tables_are_refused(scaling: str, value: float) -> None:
    model = make("bert")
    model.base_model.embeddings.position_embeddings.weight.data[3, 0] = value
    with pytest.raises(ArgumentError, match="the row of position 3 does not"):
        floater.extend(model, 80, scaling=scaling)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("scaling", TABLE_SCALINGS)
def test_tiny_tables_are_extended(scaling: str, rows: int) -> None:
    model = make("bert")
    attached = floater.extend(model, 30, scaling=scaling, trained=rows)  # type: ignore[arg-type]
    with torch.no_grad():
        assert logits(model, long_batch("bert", 30)).isfinite().all()
    attached.merge()


def test_models_without_memory_and_lengths_without_a_number_are_refused() -> None:
    with torch.device("meta"):
        empty = make("bert")
    with pytest.raises(ArgumentError, match="device meta"):
        floater.extend(empty, 80)
    with pytest.raises(ArgumentError, match="`length` must be a number of tokens"):
        floater.extend(make("bert"), None)  # type: ignore[arg-type]
    _, attached = extend("bert")
    with pytest.raises(floater.FloaterError, match="GB"):
        attached.merge(10**10)
