"""Encoders of a rotary model's phases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import floater
from floater.attachments.layouts import LAYOUTS
from floater.encoders import PhaseFlow, PhaseFlowConfig
from floater.errors import ArgumentError, LayoutError

from .attach_models import (
    ARCHITECTURES,
    CAUSAL,
    LIMIT,
    MOVING,
    VOCABULARY,
    batch,
    check_decoding,
    logits,
    make,
)

ROTARY = tuple(name for name in ARCHITECTURES if LAYOUTS[name].rotary)


def attach(model: Any, *, move: bool = True, **settings: Any) -> floater.Attachment:
    """Attach phases whose network is not zero."""
    attached = floater.attach(model, PhaseFlowConfig(**{"factor": 4.0, **settings}), sites="phases")
    if move:
        shake(attached)
    return attached


def shake(attached: floater.Attachment) -> None:
    encoder = attached.encoders["phases"]
    assert isinstance(encoder, PhaseFlow)
    assert encoder.flow is not None
    torch.manual_seed(7)
    torch.nn.init.normal_(encoder.flow.dynamics.second.weight, std=2.0)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.parametrize("autocast", [False, True])
def test_fresh_phases_leave_a_model_unchanged_to_the_bit(name: str, autocast: bool) -> None:
    model, inputs = make(name), batch(name)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        before = logits(model, inputs)
        attached = attach(model, move=False)
        assert torch.equal(logits(model, inputs), before)
        shake(attached)
        assert (logits(model, inputs) - before).abs().max() > 1e-4
        with attached.disabled():
            assert torch.equal(logits(model, inputs), before)
        attached.detach()
        assert torch.equal(logits(model, inputs), before)


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "phi3", "modernbert"])
def test_phases_turn_queries_and_keys(name: str) -> None:
    """A model whose rotary positions return the cosine and sine of the moved phases."""
    model, inputs = make(name), batch(name)
    attached = attach(model)
    with torch.no_grad():
        found = logits(model, inputs)
    added = attached.site_tables(inputs["input_ids"].shape[1])
    assert added is not None
    attached.detach()
    stack = LAYOUTS[name].stacks
    (layout,) = stack.values()
    rotary: Any = model.base_model.get_submodule(layout.positions)
    original = type(rotary).forward

    def turned(
        module: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        if layer_type not in (None, "full_attention"):
            own: tuple[Tensor, Tensor] = original(module, x, position_ids, layer_type)
            return own
        name = "inv_freq" if layer_type is None else "full_attention_inv_freq"
        phases = torch.arange(x.shape[1])[:, None] * getattr(module, name) + added[:, 0]
        both = torch.cat((phases, phases), -1)[None]
        return both.cos(), both.sin()

    rotary.forward = turned.__get__(rotary)
    with torch.no_grad():
        torch.testing.assert_close(found, logits(model, inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CAUSAL if LAYOUTS[name].rotary])
def test_decoding_step_by_step_equals_the_full_forward(name: str) -> None:
    model = make(name).double()
    attach(model)
    check_decoding(name, model)


@pytest.mark.parametrize("name", ["llama", "modernbert"])
def test_a_padded_row_equals_the_row_alone(name: str) -> None:
    model, inputs = make(name), batch(name)
    attach(model)
    tokens = int(inputs["attention_mask"][1].sum())
    with torch.no_grad():
        padded = logits(model, inputs)[1, :tokens]
        alone = logits(model, {"input_ids": inputs["input_ids"][1:, :tokens]})[0]
    torch.testing.assert_close(padded, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("baked", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "modernbert"])
def test_phases_are_saved_baked_and_loaded(name: str, baked: bool, tmp_path: Path) -> None:
    model, inputs = make(name), batch(name)
    attached = attach(model, scaling="yarn")
    with torch.no_grad():
        before = logits(model, inputs)
        if baked:
            attached.bake(32)
        assert torch.equal(logits(model, inputs), before)
        floater.save_pretrained(model, tmp_path)
        again = floater.from_pretrained(type(model), tmp_path)
        assert torch.equal(logits(again, inputs), before)
    found = floater.attachment(again)
    assert found is not None
    assert found.config == attached.config
    assert (found.baked_length == 32) is baked


def test_a_flow_at_the_projections_and_phases_are_saved_together(tmp_path: Path) -> None:
    model, inputs = make("llama"), batch("llama")
    with torch.no_grad():
        own = logits(model, inputs)
        phases = PhaseFlowConfig(factor=2.0)
        attached = floater.attach(model, floater.FlowConfig(), phases=phases)
        assert torch.equal(logits(model, inputs), own)
        shake(attached)
        with_phases = logits(model, inputs)
        assert not torch.equal(with_phases, own)
        attached.detach()
        attached = floater.attach(model, MOVING, phases=phases)
        shake(attached)
        both = logits(model, inputs)
        assert (both - with_phases).abs().max() > 1e-3
        floater.save_pretrained(model, tmp_path)
        again = floater.from_pretrained(type(model), tmp_path)
        assert torch.equal(logits(again, inputs), both)
    assert sorted(attached.encoders) == ["all", "phases"]
    assert attached.site_names()[-1] == "decoder phases"


def test_tokens_stand_where_times_say() -> None:
    """Twice the times are twice the positions, for the model's phases too."""
    model, inputs = make("llama"), {"input_ids": batch("llama")["input_ids"]}
    attached = attach(model)
    length = inputs["input_ids"].shape[1]
    places = torch.arange(0, 2 * length, 2)
    with torch.no_grad():
        expected = logits(model, inputs, position_ids=places[None])
        with attached.at(places * attached.delta):
            found = logits(model, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_random_times_in_training_move_the_models_phases() -> None:
    model, inputs = make("llama"), {"input_ids": batch("llama")["input_ids"]}
    attached = attach(model)
    expected = logits(model, inputs)
    attached.jitter = floater.TimeJitter(gaps=1, until=200)
    model.train()
    found = logits(model, inputs)
    assert (found - expected).abs().max() > 1e-3
    found.sum().backward()
    weights = dict(attached.named_parameters())
    for name in ("first", "second"):
        gradient = weights[f"encoders.phases.flow.dynamics.{name}.weight"].grad
        assert gradient is not None
        assert bool(gradient.any())
    model.eval()
    assert torch.equal(logits(model, inputs), expected)
    known = attached.trained_range["decoder"] / attached.delta
    assert inputs["input_ids"].shape[1] - 1 < known <= 199 + 1e-6


def test_one_solution_serves_several_batches() -> None:
    model, inputs = make("llama"), batch("llama")
    attached = attach(model)
    encoder: Any = attached.encoders["phases"]
    before = encoder.flow.solves
    for _ in range(3):
        logits(model, inputs).sum().backward()
    assert encoder.flow.solves == before + 1


def test_checkpointing_gives_the_same_gradients() -> None:
    gradients = []
    for checkpointing in (False, True):
        model, inputs = make("llama").train(), batch("llama")
        attached = attach(model)
        if checkpointing:
            model.gradient_checkpointing_enable()
        logits(model, inputs).square().sum().backward()
        gradients.append([p.grad for p in attached.parameters() if p.grad is not None])
    assert len(gradients[0]) == 4
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)


# extend -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "modernbert"])
def test_an_exact_extension_keeps_inputs_of_the_models_length(name: str, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model, inputs = make(name), {"input_ids": torch.randint(3, VOCABULARY, (2, LIMIT))}
    longer = {"input_ids": torch.randint(3, VOCABULARY, (2, 2 * LIMIT))}
    with torch.no_grad():
        before, before_longer = logits(model, inputs), logits(model, longer)
        attached = floater.extend(model, 4 * LIMIT, exact=True)
        shake(attached)
        assert torch.equal(logits(model, inputs), before)
        found = logits(model, longer)
        if name == "llama":  # a causal model: the first tokens do not see the others
            torch.testing.assert_close(found[:, :LIMIT], before_longer[:, :LIMIT])
        assert (found - before_longer).abs().max() > 1e-4
    assert model.config.max_position_embeddings == 4 * LIMIT
    floater.save_pretrained(model, tmp_path)
    again = floater.from_pretrained(type(model), tmp_path)
    assert again.config.max_position_embeddings == 4 * LIMIT
    with torch.no_grad():
        assert torch.equal(logits(again, longer), found)


def test_a_fixed_extension_is_that_of_transformers() -> None:
    """A Llama that transformers itself scales by YaRN."""
    model = make("llama")
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (2, 3 * LIMIT))}
    config = model.config.to_dict()
    config["rope_parameters"] = {
        **config["rope_parameters"],
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": LIMIT,
    }
    config["max_position_embeddings"] = 4 * LIMIT
    theirs = LlamaForCausalLM(LlamaConfig(**config)).eval()
    theirs.load_state_dict(model.state_dict())
    floater.extend(model, 4 * LIMIT, scaling="yarn", learned=False)
    with torch.no_grad():
        torch.testing.assert_close(
            logits(model, inputs), logits(theirs, inputs), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("marian", {"length": 100}, "`extend` serves models with rotary positions .*'marian'"),
        ("llama", {"length": LIMIT}, "must be larger than the 40 positions"),
        ("llama", {"length": 10.5}, "must be a number of tokens, from 1 to .*, but is 10.5"),
        ("llama", {"length": 10**12}, "must be a number of tokens"),
        ("llama", {"length": 100, "trained": 0}, "`trained` must be a number of tokens"),
        ("llama", {"length": 100, "trained": 200}, "must be larger than the 200 positions"),
        ("llama", {"length": 100, "scaling": "cubic"}, "cubic"),
    ],
)
def test_extensions_that_do_not_fit_are_refused(
    name: str, settings: dict[str, Any], message: str
) -> None:
    model = make(name)
    with pytest.raises(floater.FloaterError, match=message):
        floater.extend(model, **settings)
    assert floater.attachment(model) is None
    assert model.config.max_position_embeddings == LIMIT


def test_an_extension_can_be_taken_back_and_made_again(tmp_path: Path) -> None:
    model = make("llama")
    floater.extend(model, 2 * LIMIT).detach()
    assert model.config.max_position_embeddings == LIMIT
    attached = floater.extend(model, 3 * LIMIT, scaling="yarn")
    assert (attached.config.factor, attached.config.length) == (3.0, LIMIT)  # type: ignore[attr-defined]
    floater.save_pretrained(model, tmp_path / "alone", base=False)
    make("llama").save_pretrained(tmp_path / "base")
    again = floater.from_pretrained(type(model), tmp_path / "alone", base=tmp_path / "base")
    assert again.config.max_position_embeddings == 3 * LIMIT
    floater.save_pretrained(model, tmp_path / "all")
    plain = type(model).from_pretrained(tmp_path / "all")  # without its attachment
    longer = floater.extend(plain, 4 * LIMIT)
    assert (longer.config.factor, longer.config.length) == (4.0, LIMIT)  # type: ignore[attr-defined]


def test_blocks_with_windows_alone_need_no_extension() -> None:
    model = make("gemma3_text")
    model.base_model.rotary_emb.layer_types = ["sliding_attention"]
    with pytest.raises(LayoutError, match="all of them attend to windows"):
        floater.extend(model, 100)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("bert", {"sites": "phases"}, "needs a model with rotary positions"),
        ("llama", {"sites": "qkv"}, "go together, but .* `sites` is 'qkv'"),
        ("llama", {"sites": "phases", "positions": "replace"}, 'need positions="keep"'),
        ("llama", {"sites": "phases", "indices": "mask"}, 'indices="model"'),
        ("llama", {"sites": "phases", "phases": PhaseFlowConfig()}, "`phases` must be left out"),
    ],
)
def test_phases_that_do_not_fit_are_refused(
    name: str, settings: dict[str, Any], message: str
) -> None:
    model = make(name)
    with pytest.raises((ArgumentError, LayoutError), match=message):
        floater.attach(model, PhaseFlowConfig(), **settings)
    assert floater.attachment(model) is None


@pytest.mark.parametrize("frequencies", [(1.0, 2.0), (1.0, 0.5)])
def test_frequencies_must_be_those_of_the_model(frequencies: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"`frequencies` .* must be those of the model"):
        floater.attach(make("llama"), PhaseFlowConfig(frequencies=frequencies), sites="phases")


def test_frequencies_that_depend_on_the_length_are_refused() -> None:
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
    )
    with pytest.raises(LayoutError, match=r"must have fixed frequencies, but are .*'dynamic'"):
        floater.attach(LlamaForCausalLM(config), PhaseFlowConfig(), sites="phases")
