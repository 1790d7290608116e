"""Whisper, whose encoder takes sound of one length only, with a longer table."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import (
    WhisperConfig,
    WhisperForAudioClassification,
    WhisperForCausalLM,
    WhisperModel,
)

import floater
from floater.encoders.tables import TABLE_SCALINGS
from floater.errors import ArgumentError, AttachmentError, LayoutError, SavedError

from .attach_models import LIMIT, VOCABULARY, WIDTH, logits, make
from .test_tables import KEEPING, by_hand, shake

OLD, NEW = 17, 40
"""Positions of the encoder: half as many as frames."""


def sound(positions: int, bands: int = 8) -> dict[str, Tensor]:
    torch.manual_seed(5)
    return {
        "input_features": torch.randn(2, bands, 2 * positions),
        "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 6)),
    }


def extended(*, move: bool = True, **settings: Any) -> tuple[Any, floater.Attachment]:
    model = make("whisper")
    attached = floater.extend(model, NEW, **settings)
    if move:
        shake(attached)
    return model, attached


def positions_of(model: Any) -> Tensor:
    """What the encoder adds to its states."""
    found: list[Tensor] = []
    handle = model.base_model.encoder.embed_positions.register_forward_hook(
        lambda module, inputs, output: found.append(output)
    )
    with torch.no_grad():
        logits(model, sound(NEW))
    handle.remove()
    return found[0].reshape(NEW, -1)


@pytest.mark.parametrize("scaling", TABLE_SCALINGS)
def test_the_encoder_takes_longer_inputs(scaling: str) -> None:
    model, _ = extended(scaling=scaling)
    assert model.config.max_source_positions == NEW
    assert model.config.max_target_positions == LIMIT
    with torch.no_grad():
        out = model(**sound(NEW))
        assert out.encoder_last_hidden_state.shape == (2, NEW, WIDTH)
        assert out.logits.isfinite().all()
        with pytest.raises(ValueError, match=f"to be of length {2 * NEW}, but found {2 * OLD}"):
            logits(model, sound(OLD))
        # a forward that failed leaves nothing behind
        assert torch.equal(logits(model, sound(NEW)), out.logits)


@pytest.mark.parametrize("scaling", TABLE_SCALINGS)
def test_fresh_positions_are_those_of_the_scaling(scaling: str) -> None:
    model, attached = extended(move=False, scaling=scaling)
    rows = model.base_model.encoder.embed_positions.weight
    found = positions_of(model)
    if scaling in KEEPING:
        assert torch.equal(found[:OLD], rows)
    if scaling != "waves":
        expected = torch.tensor(by_hand(rows.double().numpy(), scaling, NEW)).float()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert found[OLD:].abs().max() > 0.1
    shake(attached)
    assert (positions_of(model) - found).abs().max() > 1e-3


@pytest.mark.parametrize("scaling", KEEPING)
def test_exact_positions_stay_after_training(scaling: str) -> None:
    model, _ = extended(scaling=scaling, exact=True)
    rows = model.base_model.encoder.embed_positions.weight
    found = positions_of(model)
    assert torch.equal(found[:OLD], rows)
    fresh = positions_of(extended(move=False, scaling=scaling, exact=True)[0])
    assert (found[OLD:] - fresh[OLD:]).abs().max() > 1e-3


@pytest.mark.parametrize("scaling", TABLE_SCALINGS)
def test_the_flow_starts_at_zero_and_learns(scaling: str) -> None:
    model, attached = extended(move=False, scaling=scaling)
    encoder: Any = attached.encoders["table"]
    assert not encoder.flow.table(NEW).any()
    inputs = sound(NEW)
    before = positions_of(model)
    model.train()
    optimiser = torch.optim.AdamW(attached.parameters(), lr=0.01)
    for _ in range(2):
        optimiser.zero_grad()
        model(**inputs, labels=inputs["decoder_input_ids"]).loss.backward()
        optimiser.step()
    gradients = [weight.grad for weight in attached.parameters()]
    assert all(gradient is not None and bool(gradient.any()) for gradient in gradients)
    moved = (positions_of(model.eval()) - before).abs().amax(-1)
    assert moved.min() > 0
    assert model.base_model.encoder.embed_positions.weight.grad is None


@pytest.mark.parametrize("scaling", TABLE_SCALINGS)
def test_disabled_and_detached_models_are_as_before(scaling: str) -> None:
    short, long = sound(OLD), sound(NEW)
    with torch.no_grad():
        before = logits(make("whisper"), short)
        model, attached = extended(scaling=scaling)
        after = logits(model, long)
        with attached.disabled():
            assert model.config.max_source_positions == OLD
            assert torch.equal(logits(model, short), before)
            with pytest.raises(ValueError, match=f"to be of length {2 * OLD}"):
                logits(model, long)
        assert torch.equal(logits(model, long), after)
        attached.detach()
        assert model.config.max_source_positions == OLD
        assert torch.equal(logits(model, short), before)
        assert not hasattr(model.config, "floater")


@pytest.mark.parametrize("scaling", TABLE_SCALINGS)
def test_a_merged_model_is_a_plain_one(scaling: str, tmp_path: Path) -> None:
    model, attached = extended(scaling=scaling)
    inputs = sound(NEW)
    with torch.no_grad():
        before = logits(model, inputs)
        attached.merge()
        assert floater.attachment(model) is None
        assert torch.equal(logits(model, inputs), before)
        assert not model.base_model.encoder.embed_positions.weight.requires_grad
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path).eval()
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["max_source_positions"] == NEW
    assert settings["max_target_positions"] == LIMIT
    assert "floater" not in settings
    with torch.no_grad():
        assert torch.equal(logits(loaded, inputs), before)


def test_a_model_is_merged_at_another_length() -> None:
    model, attached = extended()
    with pytest.raises(ArgumentError, match=f"at least the {OLD} positions"):
        attached.merge(OLD - 1)
    assert model.config.max_source_positions == NEW
    attached.merge(NEW + 3)
    assert model.config.max_source_positions == NEW + 3
    with torch.no_grad():
        assert logits(model, sound(NEW + 3)).isfinite().all()


@pytest.mark.parametrize("length", [1505, 1508, 1511, 3000])
def test_a_length_is_met_in_spite_of_rounding(length: int) -> None:
    """1505 / 1500 * 1500 is a little more than 1505."""
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        num_mel_bins=4,
        pad_token_id=1,
    )
    model = WhisperModel(config).eval()
    attached = floater.extend(model, length, scaling="cycle")
    assert model.config.max_source_positions == length
    with torch.no_grad():
        before = logits(model, sound(length, bands=4))
        attached.merge()
        assert torch.equal(logits(model, sound(length, bands=4)), before)
    assert len(model.encoder.embed_positions.weight) == length


@pytest.mark.parametrize("baked", [False, True])
@pytest.mark.parametrize("scaling", TABLE_SCALINGS)
def test_saved_models_are_loaded_to_the_bit(scaling: str, baked: bool, tmp_path: Path) -> None:
    model, attached = extended(scaling=scaling)
    inputs = sound(NEW)
    if baked:
        attached.bake(NEW)
    with torch.no_grad():
        before = logits(model, inputs)
        floater.save_pretrained(model, tmp_path)
        assert model.config.max_source_positions == NEW
        loaded = floater.from_pretrained(type(model), tmp_path)
        assert torch.equal(logits(loaded, inputs), before)
        found = floater.attachment(loaded)
        assert found is not None
        assert found.extension == (OLD, NEW)
        # without this package, the folder holds the model as it was
        plain = type(model).from_pretrained(tmp_path).eval()
        assert torch.equal(logits(plain, sound(OLD)), logits(make("whisper"), sound(OLD)))
        found.detach()
        assert torch.equal(logits(loaded, sound(OLD)), logits(plain, sound(OLD)))


def test_a_checkpoint_of_the_trainer_is_loaded(tmp_path: Path) -> None:
    model, _ = extended()
    model.save_pretrained(tmp_path)
    loaded = floater.from_pretrained(type(model), tmp_path)
    with torch.no_grad():
        assert torch.equal(logits(loaded, sound(NEW)), logits(model, sound(NEW)))


@pytest.mark.parametrize("extension", [[], ["many", 40], [17], "17"])
def test_a_damaged_number_of_positions_is_one_error(extension: Any, tmp_path: Path) -> None:
    model, _ = extended()
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["floater"]["extension"] = extension
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(SavedError):
        floater.from_pretrained(type(model), tmp_path)


def test_copies_made_while_disabled_are_enabled() -> None:
    model, attached = extended()
    with torch.no_grad():
        expected = logits(model, sound(NEW))
        with attached.disabled():
            copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        attached.detach()
        for each in copies:
            assert torch.equal(logits(each, sound(NEW)), expected)


def test_text_is_generated_from_longer_sound() -> None:
    model, attached = extended()
    model.generation_config.eos_token_id = None
    settings = {"max_new_tokens": 5, "do_sample": False}
    features = sound(NEW)["input_features"]
    found = model.generate(features, **settings)
    attached.merge()
    assert found.shape[1] >= 5
    assert torch.equal(model.generate(features, **settings), found)


def test_attach_and_at_serve_whisper_too() -> None:
    model = make("whisper")
    table = floater.TableFlowConfig(factor=2.0)
    attached = floater.attach(model, floater.FlowConfig(), table=table)
    assert model.config.max_source_positions == 2 * OLD
    with torch.no_grad():
        assert logits(model, sound(2 * OLD)).isfinite().all()
        with attached.at(source=torch.arange(2 * OLD) * 0.05):
            assert logits(model, sound(2 * OLD)).isfinite().all()
    with pytest.raises(AttachmentError, match="alone"):
        attached.merge()
    attached.detach()
    floater.attach(model, floater.TableFlowConfig(), sites="table")
    assert model.config.max_source_positions == OLD


def test_a_model_with_lora_is_extended() -> None:
    adapted = get_peft_model(make("whisper"), LoraConfig(target_modules=["q_proj"]))
    floater.extend(adapted, NEW)
    with torch.no_grad():
        assert logits(adapted, sound(NEW)).isfinite().all()


def test_a_classifier_is_extended_and_merged(tmp_path: Path) -> None:
    config = make("whisper").config
    config.num_labels = 3
    torch.manual_seed(0)
    model = WhisperForAudioClassification(config).eval()
    short, long = (sound(length)["input_features"] for length in (OLD, NEW))
    with torch.no_grad():
        before = model(short).logits
        attached = floater.extend(model, NEW)
        shake(attached)
        with attached.disabled():
            assert torch.equal(model(short).logits, before)
        after = model(long).logits
        attached.merge()
        model.save_pretrained(tmp_path)
        loaded = WhisperForAudioClassification.from_pretrained(tmp_path).eval()
        assert torch.equal(loaded(long).logits, after)


@pytest.mark.parametrize("part", ["decoder", "encoder"])
def test_parts_of_a_model_are_refused(part: str) -> None:
    whole = make("whisper")
    model = WhisperForCausalLM(whole.config) if part == "decoder" else whole.base_model.encoder
    with pytest.raises(LayoutError, match="is a part of one; pass the whole model"):
        floater.extend(model, NEW)


@pytest.mark.parametrize(
    ("length", "settings", "message"),
    [
        (OLD, {}, f"`length` must be larger than the {OLD} positions"),
        (NEW, {"trained": OLD + 1}, f"at most the {OLD} positions"),
        (NEW, {"scaling": "linear", "exact": True}, "takes those of one length only"),
        (NEW, {"scaling": "yarn"}, "`scaling` must be one of 'waves'"),
    ],
)
def test_mistakes_leave_the_model_as_it_is(
    length: int, settings: dict[str, Any], message: str
) -> None:
    model = make("whisper")
    with pytest.raises(ArgumentError, match=message):
        floater.extend(model, length, **settings)
    assert floater.attachment(model) is None
    assert model.config.max_source_positions == OLD
