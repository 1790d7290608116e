"""Attachments where something is unusual: other sources, other stacks, adapters, odd numbers,
copies, tampered folders.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import resource
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    DebertaConfig,
    DebertaModel,
    DebertaV2Config,
    DebertaV2Model,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MPNetConfig,
    MPNetModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput

import floater
from attach_models import PAD, SEQ2SEQ, VOCABULARY, WIDTH, batch, make
from floater.encoders import Flow
from floater.errors import (
    ArgumentError,
    AttachmentError,
    ConfigError,
    LayoutError,
    LengthError,
    SavedError,
    StateOverflow,
)
from floater.files import record_hashes

MOVING = floater.FlowConfig(zero_init=False, init_scale=1.0, initial_scale=0.7)
DEEP = floater.FlowConfig(zero_init=False, init_scale=1.0, initial_scale=0.7, keep_for=3)


def logits(model: Any, inputs: dict[str, Any]) -> Tensor:
    out: Tensor = model(**inputs)[0]
    return out


# A decoder counts the source as its encoder did ---------------------------------------------------


def sources(case: str) -> dict[str, Tensor]:
    """Source tokens of two rows, the second with something unusual."""
    torch.manual_seed(5)
    ids = torch.randint(3, VOCABULARY, (2, 9))
    mask = torch.ones_like(ids)
    if case == "padded in front":
        ids[1, :4], mask[1, :4] = PAD, 0
    elif case == "padded behind":
        ids[1, 6:], mask[1, 6:] = PAD, 0
    elif case == "masked token":
        mask[1, 2:4] = 0
    elif case == "padding without a mask":
        ids[1, :4] = PAD
        return {"input_ids": ids}
    return {"input_ids": ids, "attention_mask": mask}


CASES = ("padded in front", "padded behind", "masked token", "padding without a mask")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("indices", ["model", "mask"])
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_decoding_from_encoder_outputs_equals_the_full_forward(
    name: str, indices: Any, case: str
) -> None:
    model = make(name).double()
    floater.attach(model, MOVING, indices=indices)
    inputs, target = sources(case), torch.randint(3, VOCABULARY, (2, 5))
    mask = {key: value for key, value in inputs.items() if key == "attention_mask"}
    with torch.no_grad():
        full = logits(model, {**inputs, "decoder_input_ids": target})
        encoded = model.get_encoder()(**inputs)
        apart = logits(model, {"encoder_outputs": encoded, **mask, "decoder_input_ids": target})
        torch.testing.assert_close(apart, full, rtol=1e-9, atol=1e-9)
        rows = (model.get_encoder()(**inputs, return_dict=False)[0],)
        torch.testing.assert_close(
            logits(model, {"encoder_outputs": rows, **mask, "decoder_input_ids": target}),
            full,
            rtol=1e-9,
            atol=1e-9,
        )
        settings = {"max_new_tokens": 6, "do_sample": False, "num_beams": 3}
        for cache in (True, False):
            made = model.generate(**inputs, **settings, use_cache=cache)
            again = model.generate(
                encoder_outputs=model.get_encoder()(**inputs), **mask, **settings, use_cache=cache
            )
            assert torch.equal(made, again)


def test_states_without_a_record_are_counted_by_their_mask_or_said_to_be_unknown() -> None:
    model = make("m2m_100").double()
    floater.attach(model, MOVING)
    inputs, target = sources("padded in front"), torch.randint(3, VOCABULARY, (2, 5))
    with torch.no_grad():
        full = logits(model, {**inputs, "decoder_input_ids": target})
        states = BaseModelOutput(last_hidden_state=model.get_encoder()(**inputs)[0].clone())
        given = {"encoder_outputs": states, "decoder_input_ids": target}
        by_mask = logits(model, {**given, "attention_mask": inputs["attention_mask"]})
        torch.testing.assert_close(by_mask, full, rtol=1e-9, atol=1e-9)
        with pytest.warns(
            UserWarning, match="counted as if none were padding; pass the encoder's whole output"
        ):
            logits(model, given)
        encoded = model.get_encoder()(**inputs)
        encoded.last_hidden_state = encoded.last_hidden_state[:1]
        with pytest.raises(
            ArgumentError,
            match=r"must be an encoder's output as it was returned, but .* \(2, 9\) where",
        ):
            logits(model, {"encoder_outputs": encoded, "decoder_input_ids": target[:1]})


def test_an_encoders_output_with_positions_is_an_output_like_any_other() -> None:
    model = make("marian")
    floater.attach(model, MOVING)
    with torch.no_grad():
        encoded = model.get_encoder()(**sources("padded behind"))
    again = torch.utils._pytree.tree_map(lambda tensor: tensor, encoded)
    assert isinstance(again, BaseModelOutput)
    assert torch.equal(again["floater_positions"], encoded.floater_positions)
    assert torch.equal(
        pickle.loads(pickle.dumps(encoded)).floater_positions, encoded.floater_positions
    )


def test_blocks_of_an_encoder_decoder_by_pattern_are_not_counted_by_a_mask() -> None:
    model, targets, _ = unknown("t5 decoder")
    with pytest.raises(
        ArgumentError,
        match=r'`indices` must be "model" for the blocks of an encoder-decoder .* is "mask"',
    ):
        floater.attach(model, MOVING, sites=floater.Sites("qkv", targets=targets), indices="mask")


# No forward passes by its attachment --------------------------------------------------------------

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "pad_token_id": PAD,
}
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_RELATIVE: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
_BUCKETS: dict[str, Any] = {"position_buckets": 8, "share_att_key": True}
_T5: dict[str, Any] = {
    **{
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
    },
    **{"dropout_rate": 0.0, "decoder_start_token_id": 0},
}


def unknown(name: str) -> tuple[Any, dict[str, str], dict[str, Tensor]]:
    """A tiny model without a layout, its places by pattern, and inputs."""
    torch.manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (2, 9))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inner, paths = "encoder.layer.*", {}
    model: Any
    if name == "mpnet":
        model = MPNetModel(MPNetConfig(**_SMALL, **_NO_DROPOUT))
        paths = {part: f"{inner}.attention.attn.{part}" for part in "qkv"}
    elif name == "deberta-v2":
        model = DebertaV2Model(DebertaV2Config(**_SMALL, **_NO_DROPOUT, **_RELATIVE, **_BUCKETS))
        paths = {
            word[0]: f"{inner}.attention.self.{word}_proj" for word in ("query", "key", "value")
        }
        paths["k"], paths["v"] = (
            f"{inner}.attention.self.{word}_proj" for word in ("key", "value")
        )
    elif name == "deberta":
        model = DebertaModel(DebertaConfig(**_SMALL, **_NO_DROPOUT, **_RELATIVE))
    elif name == "llama":
        model, inner = LlamaForCausalLM(LlamaConfig(**_SMALL)), "model.layers.*"
        paths = {part: f"{inner}.self_attn.{part}_proj" for part in "qkv"}
    else:
        stack = name.removeprefix("t5 ")
        model = T5ForConditionalGeneration(T5Config(**_T5))
        inner = f"{stack}.block.*"
        paths = {part: f"{inner}.layer.0.SelfAttention.{part}" for part in "qkv"}
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 5))
    wanted = {"blocks": inner, **{key: path for key, path in paths.items() if key in "qkv"}}
    return model.eval().double(), wanted, inputs


@pytest.mark.parametrize("kind", ["qkv", "blocks"])
@pytest.mark.parametrize(
    "name", ["mpnet", "deberta-v2", "deberta", "llama", "t5 encoder", "t5 decoder"]
)
def test_positions_reach_the_blocks_of_any_stack(name: str, kind: str) -> None:
    model, targets, inputs = unknown(name)
    if name == "deberta" and kind == "qkv":
        pytest.skip("its one projection is laid out head by head, which is refused")
    length = 5 if name == "t5 decoder" else 9
    with torch.no_grad():
        plain = logits(model, inputs)
    made = floater.attach(
        model, floater.LearnedConfig(max_length=20), sites=floater.Sites(kind, targets=targets)
    )
    encoder: Any = made.encoder
    with torch.no_grad():
        encoder.weight.normal_()
        table = encoder.weight.detach().clone()
        ours = logits(model, inputs)
        made.detach()
        assert torch.equal(logits(model, inputs), plain)
        handles, site = [], 0
        for block in range(2):
            if kind == "blocks":
                added = table[:length, site]

                def add(module: Any, args: Any, kwargs: Any, added: Tensor = added) -> Any:
                    if args:
                        return (args[0] + added, *args[1:]), kwargs
                    return args, {**kwargs, "hidden_states": kwargs["hidden_states"] + added}

                module = model.get_submodule(targets["blocks"].replace("*", str(block)))
                handles.append(module.register_forward_pre_hook(add, with_kwargs=True))
                site += 1
                continue
            for part in "qkv":
                calls: list[int] = []

                def after(
                    module: Any,
                    args: Any,
                    out: Tensor,
                    number: int = site,
                    calls: list[int] = calls,
                ) -> Tensor:
                    calls.append(
                        1
                    )  # deberta-v2 projects its relative positions with the same layer, later
                    return out + table[:length, number] if len(calls) == 1 else out

                module = model.get_submodule(targets[part].replace("*", str(block)))
                handles.append(module.register_forward_hook(after))
                site += 1
        expected = logits(model, inputs)
        for handle in handles:
            handle.remove()
    assert (ours - plain).abs().max() > 1e-3
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["deberta-v2", "deberta", "llama", "t5 encoder"])
def test_gradient_checkpointing_by_pattern_changes_no_gradient(name: str) -> None:
    model, targets, inputs = unknown(name)
    made = floater.attach(model, MOVING, sites=floater.Sites("blocks", targets=targets))
    model.train()
    found = []
    for _ in range(2):
        model.zero_grad()
        logits(model, inputs).square().mean().backward()
        found.append(
            [
                parameter.grad.clone()
                for parameter in made.parameters()
                if parameter.grad is not None
            ]
        )
        model.gradient_checkpointing_enable()
    assert len(found[0]) == 5
    for one, other in zip(*found, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["llama", "t5 decoder"])
def test_decoding_by_pattern_equals_the_full_forward(name: str) -> None:
    model, targets, inputs = unknown(name)
    floater.attach(model, MOVING, sites=floater.Sites("qkv", targets=targets))
    inputs = {key: value for key, value in inputs.items() if key != "decoder_input_ids"}
    settings = {
        "max_new_tokens": 6,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    with torch.no_grad():
        cached, whole = (
            model.generate(**inputs, use_cache=cache, **settings) for cache in (True, False)
        )
    assert torch.equal(cached.sequences, whole.sequences)
    for one, other in zip(cached.logits, whole.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


def test_a_projection_laid_out_head_by_head_is_refused() -> None:
    model, targets, _ = unknown("deberta")
    with pytest.raises(
        LayoutError,
        match=r"must be a projection whose output is \[q \| k \| v\], but that of deberta mixes",
    ):
        floater.attach(
            model,
            MOVING,
            sites=floater.Sites(
                "qkv", targets={**targets, "qkv": "encoder.layer.*.attention.self.in_proj"}
            ),
        )


class Deaf(nn.Module):
    """A stack that never calls what it holds."""

    def __init__(self, calls: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DeafBlock(calls)])
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x if self.calls == "nothing" else self.layers[0](x)
        return out


class DeafBlock(nn.Module):
    def __init__(self, calls: str) -> None:
        super().__init__()
        self.q, self.calls = nn.Linear(WIDTH, WIDTH), calls

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x @ self.q.weight.t() if self.calls == "block" else self.q(x)
        return out


def test_a_forward_that_passes_by_its_attachment_is_an_error() -> None:
    x = torch.randn(1, 4, WIDTH)
    sites = floater.Sites("qkv", targets={"blocks": "layers.*", "q": "layers.*.q"})
    for calls, message in (
        ("nothing", "no block of the encoder was entered"),
        ("block", "the projection q of block 1 was not called"),
    ):
        model = Deaf(calls).eval()
        made = floater.attach(model, MOVING, sites=sites)
        with pytest.raises(AttachmentError, match=message), torch.no_grad():
            model(x)
        with made.disabled():
            model(x)
    heard = Deaf("projection").eval()
    floater.attach(heard, MOVING, sites=sites)
    with torch.no_grad():
        assert heard(x).shape == x.shape


def test_a_block_by_itself_is_refused_and_leaves_nothing_behind() -> None:
    model, inputs = make("bert"), batch("bert")
    made = floater.attach(model, MOVING)
    hidden = torch.randn(1, 4, WIDTH)
    with pytest.raises(
        AttachmentError, match="BertLayer was entered without the encodings of its tokens"
    ):
        model.bert.encoder.layer[0](hidden)
    with made.disabled():
        model.bert.encoder.layer[0](hidden)
    with torch.no_grad():
        before = logits(model, inputs)
        with pytest.raises(IndexError):
            model(input_ids=torch.full((1, 4), 10 * VOCABULARY))
        assert torch.equal(logits(model, inputs), before)


# Adapters and quantised layers --------------------------------------------------------------------

LORA: dict[str, Any] = {"r": 4, "target_modules": ["query", "value"], "lora_dropout": 0.0}


def with_lora(order: str) -> tuple[Any, Any]:
    """A model with LoRA and a flow that PEFT trains, and its inner model."""
    inner = make("bert")
    floater.attach(inner, floater.FlowConfig())
    if order == "LoRA first":  # the attachment is made again around LoRA's layers
        made = floater.attachment(inner)
        assert made is not None
        made.detach()
        peft = get_peft_model(inner, LoraConfig(**LORA))
        floater.attach(peft, floater.FlowConfig())
        attached = floater.attachment(peft)
        assert attached is not None
        attached.requires_grad_(True)
        return peft, inner
    return get_peft_model(inner, LoraConfig(**LORA, modules_to_save=["floater"])), inner


def train(model: Any, inputs: dict[str, Tensor], steps: int = 3) -> None:
    model.train()
    optimiser = torch.optim.Adam(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05
    )
    for _ in range(steps):
        optimiser.zero_grad()
        logits(model, inputs).square().mean().backward()
        optimiser.step()
    model.eval()


@pytest.mark.parametrize("order", ["flow first", "LoRA first"])
def test_a_flow_trains_beside_lora(order: str) -> None:
    inputs = batch("bert")
    plain = make("bert")
    model, inner = with_lora(order)
    made = floater.attachment(model)
    assert made is not None
    assert floater.attachment(inner) is made
    with torch.no_grad():
        base = logits(plain, inputs)
        assert torch.equal(logits(model, inputs), base)  # LoRA and flow are both fresh
    train(model, inputs)
    flow: Any = made.encoder
    assert flow.initial.grad is not None
    assert flow.initial.abs().max() > 0.01
    with torch.no_grad():
        trained = logits(model, inputs)
        with made.disabled():
            without = logits(model, inputs)
        assert (trained - without).abs().max() > 1e-4, "the trained flow has an effect of its own"
        if order == "flow first":  # PEFT turns off what it trains: LoRA and the flow
            with model.disable_adapter():
                assert torch.equal(logits(model, inputs), base)
        merged = model.merge_and_unload()
        torch.testing.assert_close(logits(merged, inputs), trained, rtol=1e-4, atol=1e-4)
        again = floater.attachment(merged)
        assert again is not None
        assert torch.equal(again.encoder.initial, flow.initial)  # type: ignore[arg-type]
        again.detach()
        assert floater.attachment(merged) is None
        torch.testing.assert_close(logits(merged, inputs), without, rtol=1e-4, atol=1e-4)


def test_lora_and_flow_are_saved_and_come_back(tmp_path: Path) -> None:
    inputs = batch("bert")
    model, _ = with_lora("flow first")
    train(model, inputs)
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(
        AttachmentError,
        match=r"must be saved by PEFT itself, with modules_to_save=\[\"floater\"\], or merged",
    ):
        floater.save_pretrained(model, tmp_path / "x")
    with torch.no_grad():
        trained = logits(model, inputs)
        inner = make("bert")
        floater.attach(inner, floater.FlowConfig())
        back = PeftModel.from_pretrained(inner, tmp_path / "adapter").eval()
        assert torch.equal(logits(back, inputs), trained)
        merged = back.merge_and_unload()
        floater.save_pretrained(merged, tmp_path / "merged")
        whole = floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "merged")
        assert torch.equal(logits(whole, inputs), logits(merged, inputs))
        torch.testing.assert_close(logits(whole, inputs), trained, rtol=1e-4, atol=1e-4)


SCALING = {
    "IA3": IA3Config(target_modules=["query", "value"], feedforward_modules=[]),
    "DoRA": LoraConfig(r=2, target_modules=["query", "value"], use_dora=True),
}


@pytest.mark.parametrize("first", ["flow", "adapter"])
@pytest.mark.parametrize("name", SCALING)
def test_adapters_that_scale_the_encoding_are_refused(name: str, first: str) -> None:
    model = make("bert")
    if first == "flow":
        floater.attach(model, MOVING)
    peft = get_peft_model(model, SCALING[name])
    if first == "adapter":
        floater.attach(peft, MOVING)
    with pytest.raises(
        AttachmentError, match=rf"{name} scales what projections give, the encoding included"
    ):
        logits(peft, batch("bert"))
    apart = make("bert")
    floater.attach(apart, MOVING)
    config = LoraConfig(r=2, target_modules=["output.dense"], use_dora=True)
    assert torch.isfinite(logits(get_peft_model(apart, config), batch("bert"))).all()


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantize_dynamic:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")
def test_models_that_cannot_be_saved_whole_say_so(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    model.add_adapter(LoraConfig(r=2, target_modules=["query"]))
    with pytest.raises(
        AttachmentError,
        match=r"A model with an adapter of its own \(model.add_adapter\) must be wrapped by PEFT",
    ):
        floater.save_pretrained(model, tmp_path / "x")
    small = torch.ao.quantization.quantize_dynamic(make("bert"), {nn.Linear}, dtype=torch.qint8)
    floater.attach(small, MOVING)
    for base in (True, False):
        with pytest.raises(
            AttachmentError, match=r"must be saved before it is quantised: .* is packed"
        ):
            floater.save_pretrained(small, tmp_path / "x", base=base)
    assert not (tmp_path / "x").exists()


def test_adapters_inside_the_dynamics_are_refused() -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    peft = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    with pytest.raises(
        ArgumentError,
        match=r"`first` of the dynamics must be an nn.Linear, but is a peft.*exclude_modules",
    ):
        logits(peft, batch("bert"))


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantize_dynamic:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")
def test_quantised_projections() -> None:
    inputs = batch("bert")

    def quantised(model: Any) -> Any:
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)

    model = quantised(make("bert"))
    with torch.no_grad():
        before = logits(model, inputs)
        made = floater.attach(model, floater.FlowConfig())
        assert torch.equal(logits(model, inputs), before)
        flow: Any = made.encoder
        flow.initial += 1.0
        assert (logits(model, inputs) - before).abs().max() > 1e-3
        made.detach()
        assert torch.equal(logits(model, inputs), before)
    attached = make("bert")
    made = floater.attach(attached, MOVING)
    with torch.no_grad():
        exact = logits(attached, inputs)
        with pytest.raises(
            ArgumentError,
            match=r"must be an nn.Linear, but is a torch.*dynamic.*bake the attachment before",
        ):
            logits(quantised(attached), inputs)
        made.bake(20)
        small = logits(quantised(attached), inputs)
    assert (small - exact).abs().max() < 0.2 * exact.abs().max()


# Evaluations, optimisers, copies ------------------------------------------------------------------


def rhythm(looks: tuple[int, ...], steps: int = 12) -> tuple[str, Tensor]:
    """In which of 12 steps h learns, and what it learned, with evaluations and another optimiser's
    steps in between.
    """
    torch.manual_seed(0)
    flow = DEEP.build(2, 8)
    optimiser = torch.optim.SGD(flow.parameters(), lr=0.01)
    other = nn.Linear(2, 2)
    unrelated = torch.optim.SGD(other.parameters(), lr=0.1)
    learns = ""
    for step in range(steps):
        table = flow.train().table(5)
        learns += "1" if table.requires_grad else "0"
        optimiser.zero_grad()
        if table.requires_grad:
            table.square().sum().backward()
        optimiser.step()
        if step in looks:
            with torch.no_grad():
                flow.eval().table(9)
            other(torch.ones(2)).sum().backward()
            unrelated.step()
    return learns, flow.initial.detach().clone()


@pytest.mark.parametrize("looks", [(4, 7), (0, 1, 2, 3), tuple(range(12))])
def test_an_evaluation_or_an_unrelated_optimiser_changes_nothing_that_is_kept(
    looks: tuple[int, ...],
) -> None:
    plain, with_looks = rhythm(()), rhythm(looks)
    assert plain[0] == with_looks[0] == "100100100100"
    assert torch.equal(plain[1], with_looks[1])


@pytest.mark.parametrize("how", ["copy", "pickle"])
@pytest.mark.parametrize("positions", ["keep", "replace"])
def test_a_copy_made_while_disabled_is_enabled(positions: Any, how: str) -> None:
    model, inputs = make("bert"), batch("bert")
    made = floater.attach(model, MOVING, positions=positions)
    with torch.no_grad():
        before = logits(model, inputs)
        with made.disabled(), made.at(torch.arange(11) * 0.3):
            twin = copy.deepcopy(model) if how == "copy" else pickle.loads(pickle.dumps(model))
            plain = logits(model, inputs)
        assert torch.equal(logits(twin, inputs), before)
        assert not torch.equal(plain, before)


def test_loading_other_weights_bakes_anew() -> None:
    model, other, inputs = make("bert"), make("bert"), batch("bert")
    made = floater.attach(model, MOVING)
    ours, theirs = (cast("Flow", one.encoder) for one in (made, floater.attach(other, MOVING)))
    start = {name: tensor.clone() for name, tensor in ours.state_dict().items()}

    def part() -> None:
        ours.initial.copy_(theirs.initial)
        ours.dynamics.load_state_dict(theirs.dynamics.state_dict())

    def whole() -> None:
        model.load_state_dict(other.state_dict())

    def encoder() -> None:
        ours.load_state_dict(theirs.state_dict())

    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1)
        wanted = logits(other, inputs)
        for load in (whole, encoder, part):
            made.unbake()
            ours.load_state_dict(start)
            made.bake(20)
            assert (logits(model, inputs) - wanted).abs().max() > 1e-2
            load()
            lengths = [made.baked_length]
            torch.testing.assert_close(logits(model, inputs), wanted, rtol=1e-6, atol=1e-6)
            load()
            made.unbake()
            lengths.append(made.baked_length)
            assert lengths == [20, None]
            torch.testing.assert_close(logits(model, inputs), wanted, rtol=1e-6, atol=1e-6)


# Odd numbers --------------------------------------------------------------------------------------


def test_negative_and_fractional_position_ids_are_refused() -> None:
    model = make("bert")
    floater.attach(model, MOVING, positions="replace")
    ids = torch.randint(3, VOCABULARY, (1, 4))
    kept = make("bert")
    floater.attach(kept, MOVING)
    bare = make("bert")
    floater.attach(bare, floater.NoPositionConfig(), positions="replace")
    for one in (model, kept, bare):
        with pytest.raises(
            ArgumentError, match="`position_ids` must not be negative, but contain -3"
        ):
            one(input_ids=ids, position_ids=torch.tensor([[0, 1, 2, -3]]))
    with pytest.raises(
        ArgumentError,
        match=r"`position_ids` must be whole numbers, but are torch.float32; .*attachment.at",
    ):
        model(input_ids=ids, position_ids=torch.tensor([[0, 1, 2, 2.5]]))


@pytest.mark.parametrize("padding", [0, 1, 7])
def test_robertas_ids_may_say_anything_of_padding(padding: int) -> None:
    """Rows of its table from 2 on for tokens; what stands at padding must not shift the batch."""
    model = make("roberta")
    floater.attach(model, MOVING)
    ids = torch.randint(3, VOCABULARY, (2, 8))
    ids[1, 5:] = PAD
    real = ids.ne(PAD)
    rows = torch.where(real, torch.arange(8) + PAD + 1, padding)
    with torch.no_grad():
        counted = logits(model, {"input_ids": ids, "attention_mask": real.long()})
        given = logits(
            model, {"input_ids": ids, "attention_mask": real.long(), "position_ids": rows}
        )
    torch.testing.assert_close(given[real], counted[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", [MOVING, floater.SinusoidalConfig()], ids=["flow", "sinusoidal"])
def test_positions_far_apart_are_evaluated_alone(config: Any) -> None:
    model = make("bert")
    flow = isinstance(config, floater.FlowConfig)
    chosen = (
        floater.FlowConfig(zero_init=False, initial_scale=0.7, init_scale=0.1, horizon=5.0)
        if flow
        else config
    )
    made = floater.attach(model, chosen, sites="input", positions="replace")
    ids, far = (
        torch.randint(3, VOCABULARY, (1, 4)),
        torch.tensor([[3, 2_000_000, 10_000_000, 2_000_000]]),
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = far.to(torch.float64) * made.delta
    if flow:  # of the solver, the steps to t = 10⁶ are the cost
        far, times = far // 1000, times / 1000
    with torch.no_grad():
        here = logits(model, {"input_ids": ids, "position_ids": far})
        with made.at(times):
            there = logits(model, {"input_ids": ids})
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    ) / 1024 < 300  # MB; the table would take 640


@pytest.mark.parametrize(
    "call",
    [
        lambda: floater.SinusoidalConfig().build(18, 512).table(10**9),
        lambda: MOVING.build(18, 512).table(10**12),
    ],
)
def test_tables_that_no_machine_holds_are_refused_at_once(call: Any) -> None:
    with pytest.raises(
        LengthError,
        match=(
            r"A table of [\d,]+ positions, 18 sites and 512 dimensions would take at least .* of"
            r" memory, but"
        ),
    ):
        call()


def test_a_recurrent_encoder_does_not_step_for_ever() -> None:
    with pytest.raises(
        LengthError,
        match="steps through all positions, at most 200,000, but position 10,000,000 was asked for",
    ):
        floater.RecurrentConfig().build(1, 4)(torch.tensor([1e6]))


@pytest.mark.parametrize("hidden", [10**9, 10**18])
def test_an_encoder_that_no_machine_holds_is_refused_before_it_is_built(hidden: int) -> None:
    model = make("bert")
    with pytest.raises(
        ArgumentError, match=r"The weights of FlowConfig would take|cannot be built"
    ):
        floater.attach(model, floater.FlowConfig(hidden=hidden))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_encodings_that_float16_cannot_hold_are_refused() -> None:
    flow = MOVING.build(2, 8).half()
    assert torch.isfinite(flow.table(100)).all()
    with pytest.raises(
        StateOverflow,
        match=r"States must be at most 65,504 in float16, but are larger from t = .* bfloat16 or",
    ):
        flow.table(100_000)
    steep = floater.MLPDynamics(8).half()
    with torch.no_grad():
        steep.second.bias.fill_(6e4)
    start = torch.zeros(2, 8, dtype=torch.float16)
    with pytest.raises(StateOverflow, match="larger from t = 5 on") as caught:
        floater.solve(steep, start, torch.tensor([0.0, 1.0, 5.0, 50.0]))
    assert caught.value.time == 5.0


def test_a_site_is_named_once() -> None:
    for settings in (
        {"projections": ("q", "q")},
        {"blocks": (1, 1)},
        {"stacks": ("encoder", "encoder")},
    ):
        with pytest.raises(
            ConfigError, match=r"of Sites must name each part once, but has .* more than once"
        ):
            floater.Sites("qkv", **settings)


def test_a_model_with_something_else_called_floater_is_left_alone() -> None:
    model = make("bert")
    model.floater = nn.Linear(2, 2)
    with pytest.raises(
        AttachmentError,
        match=r"must have no attribute `floater`, .* but has one of type Linear; rename it",
    ):
        floater.attach(model, MOVING)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert type(model.bert.encoder.layer[0].attention.self.query) is nn.Linear


# Saved folders ------------------------------------------------------------------------------------


def rewritten(folder: Path, tensors: dict[str, Tensor] | None = None, **description: Any) -> None:
    """Change a saved attachment and make its hashes fit again, as someone who tampers would."""
    if tensors is not None:
        save_file(tensors, folder / "floater.safetensors")
    path = folder / "floater_config.json"
    found = {**json.loads(path.read_text()), **description}
    found.pop("weights_sha256", None)
    path.write_text(json.dumps(found))
    record_hashes(folder)


def test_baked_tables_of_a_tampered_save_are_refused(tmp_path: Path) -> None:
    for name, change, message in (
        ("shape", lambda table: table[:, :-1], "finite baked encodings of shape"),
        ("nan", lambda table: table * float("nan"), "not all finite"),
        ("length", lambda table: table[:5], "finite baked encodings of shape"),
        ("whole", lambda table: table.to(torch.int64), "are torch.int64"),
        ("none", None, "must hold baked encodings where"),
    ):
        model = make("bert")
        floater.attach(model, MOVING).bake(12)
        folder = tmp_path / name
        floater.save_pretrained(model, folder)
        tensors = load_file(folder / "floater.safetensors")
        table = tensors.pop("baked.all")
        if change is not None:
            tensors["baked.all"] = change(table).contiguous()  # type: ignore[no-untyped-call]
        rewritten(folder, tensors)
        with pytest.raises(SavedError, match=message):
            floater.from_pretrained(AutoModelForMaskedLM, folder)


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    model = make("bert")
    made: Any = floater.attach(model, MOVING)
    with torch.no_grad():
        made.encoder.initial[0, 0] = float("nan")
    floater.save_pretrained(model, tmp_path)
    with pytest.raises(SavedError, match=r"must hold finite weights, but all.initial does not"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path)


def test_huge_sizes_in_a_saved_description_take_no_memory(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path)
    encoder = json.loads((tmp_path / "floater_config.json").read_text())["encoder"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for hidden in (10_000_000, 10**9, 10**19):
        rewritten(tmp_path, encoder={**encoder, "hidden": hidden})
        with pytest.raises(
            SavedError,
            match=r"do not fit their description: all.dynamics.first.weight must have|is damaged: ",
        ):
            floater.from_pretrained(AutoModelForMaskedLM, tmp_path)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 200


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("base", [True, False])
def test_flipped_bytes_of_the_base_are_noticed(tmp_path: Path, base: bool, hashed: bool) -> None:
    model = make("bert")
    model.save_pretrained(tmp_path / "base")
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path / "saved", base=base)
    weights = (tmp_path / "saved" if base else tmp_path / "base") / "model.safetensors"
    data = bytearray(weights.read_bytes())
    for place in (len(data) // 3, len(data) // 2, 2 * len(data) // 3):
        data[place] ^= 1
    weights.write_bytes(data)
    if not hashed:
        (tmp_path / "saved" / "hashes.json").unlink()
    with pytest.raises(SavedError, match=r"damaged or w.*changed after|was made for another base"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "saved", base=tmp_path / "base")


def test_saving_keeps_what_else_is_in_the_folder(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    (tmp_path / "out" / "notes").mkdir(parents=True)
    (tmp_path / "out" / "notes" / "a.txt").write_text("mine")
    (tmp_path / "out" / "vocab.txt").write_text("mine")
    (tmp_path / "out" / "model-00001-of-00002.safetensors").write_text("stale")
    floater.save_pretrained(model, tmp_path / "out")
    assert (
        (tmp_path / "out" / "notes" / "a.txt").read_text()
        == (tmp_path / "out" / "vocab.txt").read_text()
        == "mine"
    )
    assert not (tmp_path / "out" / "model-00001-of-00002.safetensors").exists()
    floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_saving_where_one_works_keeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = make("bert"), batch("bert")
    made: Any = floater.attach(model, MOVING)
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        floater.save_pretrained(model, ".")
        Path("after.txt").write_text("the folder is still there")
        with torch.no_grad():
            made.encoder.initial += 1.0
    floater.save_pretrained(model, ".")
    assert Path("mine.txt").read_text() == "mine"
    assert not list(tmp_path.glob(".*"))
    back = floater.from_pretrained(AutoModelForMaskedLM, ".")
    with torch.no_grad():
        assert torch.equal(logits(back, inputs), logits(model, inputs))


def test_saving_respects_permissions(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    mask = os.umask(0o077)
    try:
        for folder in (private, tmp_path / "new"):
            floater.save_pretrained(model, folder)
            assert folder.stat().st_mode & 0o777 == 0o700
            assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    finally:
        os.umask(mask)


def test_a_full_disk_leaves_the_old_model_whole(tmp_path: Path) -> None:
    model, inputs = make("bert"), batch("bert")
    made: Any = floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path / "out")
    with torch.no_grad():
        before = logits(model, inputs)
        made.encoder.initial += 1.0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(
            SavedError, match=r"out cannot be written: .* The previous content is unchanged"
        ):
            floater.save_pretrained(model, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    back = floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(logits(back, inputs), before)


def test_code_in_a_folder_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    folder = tmp_path / "saved"
    floater.save_pretrained(model, folder)
    (folder / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "from transformers import BertConfig as EvilConfig, BertForMaskedLM as EvilModel\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "evil"
    config["auto_map"] = {"AutoConfig": "evil.EvilConfig", "AutoModelForMaskedLM": "evil.EvilModel"}
    (folder / "config.json").write_text(json.dumps(config))
    record_hashes(folder)

    def asked(*_: object) -> str:
        raise AssertionError("asked on standard input")

    monkeypatch.setattr("builtins.input", asked)
    with pytest.raises(SavedError, match="cannot be loaded"):
        floater.from_pretrained(AutoModelForMaskedLM, folder)
    assert not (tmp_path / "ran").exists()


def test_a_model_card_shows_names_as_they_are(tmp_path: Path) -> None:
    model = BertForMaskedLM(BertConfig(**_SMALL))
    model.config._name_or_path = "<script>alert(1)</script> | x\n---\nlicense: [stolen](http://x)"
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path, base=False)
    card = (tmp_path / "README.md").read_text()
    assert "<script" not in card.split("---", 2)[2]
    assert "\nlicense" not in card
    assert "[stolen](" not in card.split("---\n\n", 1)[1]


def test_a_name_that_is_no_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="`model` must be a model"):
        floater.attach(GPT2LMHeadModel, MOVING)  # type: ignore[arg-type]
