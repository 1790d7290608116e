"""A flow on real rotary models: TinyStories' Llama, and SmolLM2 with grouped queries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import floater
from floater.recipes import DEFAULTS

pytestmark = pytest.mark.slow

PROMPTS = ("Once upon a time, there was a little girl named Lily.", "The old fisherman")
SMALL = floater.FlowConfig(zero_init=False, init_scale=0.02, initial_scale=0.02)
"""Encodings that change what a model writes, but not beyond recognition."""


def folder_of(name: str) -> Path:
    models = Path(os.environ.get("FLOATER_MODELS") or DEFAULTS["FLOATER_MODELS"])
    folder = models / "stories15m-llama" if name == "stories15m" else None
    if name == "smollm2" and "FLOATER_SMOLLM2" in os.environ:
        folder = Path(os.environ["FLOATER_SMOLLM2"])
    if folder is None or not folder.is_dir():
        pytest.skip(
            f"{name} is not here; FLOATER_MODELS names the folder of models, FLOATER_SMOLLM2 that "
            "which tools/smollm2.py wrote"
        )
    return folder


def load(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    folder = folder_of(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    inputs = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    return model, {key: inputs[key] for key in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("name", ["stories15m", "smollm2"])
def test_a_fresh_flow_changes_nothing_and_a_baked_one_writes_the_same(name: str) -> None:
    model, inputs = load(name)
    settings = {"max_new_tokens": 24, "do_sample": False}
    with torch.no_grad():
        before = model(**inputs).logits
        written = model.generate(**inputs, **settings)
        attached = floater.attach(model, floater.FlowConfig())
        assert torch.equal(model(**inputs).logits, before)
        assert torch.equal(model.generate(**inputs, **settings), written)
        attached.detach()
        attached = floater.attach(model, SMALL)
        solved = model.generate(**inputs, **settings)
        assert not torch.equal(solved, written)
        attached.bake(64)
        assert torch.equal(model.generate(**inputs, **settings), solved)


def test_lora_and_flow_train_together_are_saved_loaded_and_merged(tmp_path: Path) -> None:
    model, inputs = load("stories15m")
    floater.attach(model, floater.FlowConfig())
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["floater"])
    peft: Any = get_peft_model(model, lora)
    optimiser = torch.optim.AdamW([p for p in peft.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for _ in range(4):
        loss = peft(**inputs, labels=inputs["input_ids"]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    peft.eval()
    attached = floater.attachment(peft)
    assert attached is not None
    with torch.no_grad():
        trained = peft(**inputs).logits
        with attached.disabled():
            assert (peft(**inputs).logits - trained).abs().max() > 1e-4
        peft.save_pretrained(tmp_path / "adapter")
        fresh, _ = load("stories15m")
        floater.attach(fresh, floater.FlowConfig())
        again = PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
        assert torch.equal(again(**inputs).logits, trained)
        merged = again.merge_and_unload()
        torch.testing.assert_close(merged(**inputs).logits, trained, rtol=1e-4, atol=1e-4)
        floater.save_pretrained(merged, tmp_path / "merged")
        whole = floater.from_pretrained(AutoModelForCausalLM, tmp_path / "merged")
        assert torch.equal(whole(**inputs).logits, merged(**inputs).logits)
