"""The position of every token: limits, padding, position_ids, real-valued times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import floater
from floater.attachments import projections, token_positions
from floater.attachments.projections import ProjectionInput
from floater.errors import (
    ArgumentError,
    AttachmentError,
    LengthError,
)

from .attach_models import (
    LIMIT,
    MOVING,
    PAD,
    SEQ2SEQ,
    SITE_KINDS,
    TEXT,
    VOCABULARY,
    batch,
    generation_inputs,
    logits,
    make,
)


@pytest.mark.parametrize("name", TEXT)
def test_replacing_takes_the_limit_of_length_away(name: str) -> None:
    model, length = make(name), LIMIT + 23
    floater.attach(model, MOVING, positions="replace")
    inputs = batch(name, rows=2, length=length)
    with torch.no_grad():
        out = logits(model, inputs)
        assert torch.isfinite(out).all()
        if name not in SEQ2SEQ:
            cut = {key: value[:1, :12] for key, value in inputs.items()}
            assert (logits(model, cut).shape[1], out.shape[1]) == (12, length)


def test_replacing_serves_images_of_any_size() -> None:
    model = make("vit")
    floater.attach(model, MOVING, positions="replace")
    with torch.no_grad():
        assert torch.isfinite(logits(model, {"pixel_values": torch.randn(1, 3, 64, 48)})).all()


@pytest.mark.parametrize("name", ["bert", "distilbert", "electra", "albert", "bart", "gpt2"])
def test_keeping_a_learned_table_keeps_its_limit_and_says_so(name: str) -> None:
    model = make(name)
    floater.attach(model, floater.FlowConfig())
    with pytest.raises(
        LengthError,
        match=rf"has {LIMIT} positions, but {LIMIT + 5} are needed; .*positions=\"replace\"",
    ):
        logits(model, batch(name, rows=1, length=LIMIT + 5))


def test_keeping_marians_sinusoid_grows_it() -> None:
    long, short = make("marian", max_position_embeddings=200), make("marian")
    short.load_state_dict(
        {k: v for k, v in long.state_dict().items() if "embed_positions" not in k}, strict=False
    )
    inputs = batch("marian", rows=2, length=90)
    with torch.no_grad():
        expected = logits(long, inputs)
        attached = floater.attach(short, floater.FlowConfig())
        torch.testing.assert_close(logits(short, inputs), expected, rtol=1e-5, atol=1e-5)
        assert short.model.encoder.embed_positions.weight.shape[0] == LIMIT
        attached.detach()
        with pytest.raises(IndexError):
            logits(short, inputs)


@pytest.mark.parametrize("kind", SITE_KINDS)
@pytest.mark.parametrize("name", TEXT)
def test_a_sequence_alone_equals_itself_in_a_padded_batch(name: str, kind: str) -> None:
    model = make(name).double()
    floater.attach(model, MOVING, sites=kind)
    inputs = batch(name, rows=3, length=11)
    alone = {key: value[1:2] for key, value in inputs.items()}
    alone["input_ids"], alone["attention_mask"] = (
        alone["input_ids"][:, :7],
        alone["attention_mask"][:, :7],
    )
    with torch.no_grad():
        together, single = logits(model, inputs)[1:2], logits(model, alone)
    torch.testing.assert_close(together[:, : single.shape[1]], single, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("counting", ["model", "mask"])
def test_rows_padded_behind_are_looked_up_once_for_all_with_the_same_result(
    counting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("roberta").double()
    attached = floater.attach(model, MOVING, indices=counting)
    inputs = batch("roberta", rows=3, length=11)
    assert inputs["attention_mask"].sum(1).unique().numel() > 1
    shapes: set[int] = set()
    projected = projections._project

    def noted(x: Tensor, weight: Tensor, bias: Tensor, given: ProjectionInput) -> Tensor:
        shapes.add(given.spread().dim())
        return projected(x, weight, bias, given)

    monkeypatch.setattr(projections, "_project", noted)

    def gradients_of(out: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(out.square().sum(), list(attached.parameters())))

    once = logits(model, inputs)
    assert shapes == {2}
    shapes.clear()
    with monkeypatch.context() as slow:
        slow.setattr(token_positions, "_padded_at_end_only", lambda is_token: False)
        by_row = logits(model, inputs)
    assert shapes == {3}
    torch.testing.assert_close(once, by_row, rtol=1e-12, atol=1e-12)  # of padding too
    for ours, theirs in zip(gradients_of(once), gradients_of(by_row), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("where", ["behind", "in front", "between"])
def test_only_tokens_must_fit_the_own_table_not_their_padding(where: str) -> None:
    model = make("roberta")
    floater.attach(model, MOVING)
    ids = torch.randint(3, VOCABULARY, (1, 8))
    padding = torch.full((1, LIMIT), PAD)
    order = {
        "behind": (ids, padding),
        "in front": (padding, ids),
        "between": (ids[:, :5], padding, ids[:, 5:]),
    }[where]
    padded = torch.cat(order, 1)
    real = padded.ne(PAD)
    with torch.no_grad():
        alone = logits(model, {"input_ids": ids})
        together = logits(model, {"input_ids": padded, "attention_mask": real.long()})
    torch.testing.assert_close(together[real][None], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", SITE_KINDS)
@pytest.mark.parametrize("name", ["bert", "electra", "albert", "distilbert", "gpt2"])
def test_left_padding_with_position_ids(name: str, kind: str) -> None:
    model = make(name)
    floater.attach(model, MOVING, sites=kind)
    ids = torch.randint(3, VOCABULARY, (1, 7))
    padded = torch.cat((torch.full((1, 4), PAD), ids), 1)
    mask = torch.cat((torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 7, dtype=torch.long)), 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        single = logits(model, {"input_ids": ids})
        together = logits(
            model, {"input_ids": padded, "attention_mask": mask, "position_ids": positions}
        )
        counted = make(name)
        floater.attach(counted, MOVING, sites=kind, indices="mask")
        counted.load_state_dict(model.state_dict())
        by_mask = logits(
            counted, {"input_ids": padded, "attention_mask": mask, "position_ids": positions}
        )
    torch.testing.assert_close(together[:, 4:], single, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(by_mask[:, 4:], single, rtol=1e-5, atol=1e-5)


def test_non_contiguous_position_ids_pick_their_own_encodings() -> None:
    model = make("bert").double()
    attached = floater.attach(model, MOVING, sites="input", positions="replace")
    ids = torch.randint(3, VOCABULARY, (2, 5))
    index = torch.tensor([[0, 7, 3, 3, 21], [5, 4, 3, 2, 1]])
    encoder: Any = attached.encoder
    with torch.no_grad():
        ours = logits(model, {"input_ids": ids, "position_ids": index})
        table = encoder.table(22)[:, 0]
        attached.detach()
        bare = floater.attach(model, floater.NoPositionConfig(), sites="input", positions="replace")
        block = model.bert.encoder.layer[0]
        handle = block.register_forward_pre_hook(
            lambda m, args: (args[0] + table[index], *args[1:])
        )
        expected = logits(model, {"input_ids": ids})
        handle.remove()
        bare.detach()
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_real_times() -> None:
    model = make("bert").double()
    attached = floater.attach(model, MOVING)
    inputs = batch("bert", rows=2, length=6)
    grid = torch.arange(6, dtype=torch.float64) * attached.delta
    with torch.no_grad():
        plain = logits(model, inputs)
        with attached.at(grid):
            torch.testing.assert_close(logits(model, inputs), plain, rtol=1e-9, atol=1e-9)
        with attached.at(grid * 1.37):
            stretched = logits(model, inputs)
        rows = torch.stack((grid, grid * 1.37))
        with attached.at(rows):
            both = logits(model, inputs)
        torch.testing.assert_close(both[0], plain[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(both[1], stretched[1], rtol=1e-9, atol=1e-9)
        assert (stretched - plain).abs().max() > 1e-3
        attached.bake(10)
        with attached.at(grid):
            torch.testing.assert_close(logits(model, inputs), plain, rtol=1e-9, atol=1e-9)
        with (
            attached.at(grid * 1.37),
            pytest.raises(
                AttachmentError,
                match="must be multiples of Δ, but some lie in between; call unbake",
            ),
        ):
            logits(model, inputs)
        attached.unbake()
        for times, message in (
            (torch.zeros(3, 6), "times for 3 sequences, but the batch holds 2"),
            (torch.arange(9.0), "was given 9 times, but the sequences hold 6 tokens"),
        ):
            with attached.at(times), pytest.raises(ArgumentError, match=message):
                logits(model, inputs)


def test_real_times_of_an_encoder_decoder_through_beams() -> None:
    model = make("marian").double()
    attached = floater.attach(model, MOVING)
    inputs = generation_inputs("marian", pads=False)
    source = torch.arange(8, dtype=torch.float64) * 0.23
    with torch.no_grad():
        with attached.at(source=source):
            cached = model.generate(
                **inputs, num_beams=4, max_new_tokens=6, do_sample=False, use_cache=True
            )
            plain = model.generate(
                **inputs, num_beams=4, max_new_tokens=6, do_sample=False, use_cache=False
            )
        assert torch.equal(cached, plain)
        decoder = {**inputs, "decoder_input_ids": cached[:, :-1]}
        with attached.at(
            source=source, target=torch.arange(3) * attached.delta
        ):  # the rest continues by Δ
            full = logits(model, decoder)
        with attached.at(source=source):
            torch.testing.assert_close(logits(model, decoder), full, rtol=1e-9, atol=1e-9)
        assert (logits(model, decoder) - full).abs().max() > 1e-4
