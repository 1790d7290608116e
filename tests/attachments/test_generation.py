"""Step-by-step decoding equals the full forward pass, also from an encoder's outputs."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

import floater
from floater.errors import (
    ArgumentError,
)

from .attach_models import (
    CAUSAL,
    MOVING,
    PAD,
    SEQ2SEQ,
    SITE_KINDS,
    VOCABULARY,
    check_decoding,
    generation_inputs,
    logits,
    make,
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ("marian", "t5", "gpt2", "llama") for kind in SITE_KINDS),
        *(
            (name, "qkv")
            for name in (*SEQ2SEQ, *CAUSAL)
            if name not in ("marian", "t5", "gpt2", "llama")
        ),
    ],
)
def test_decoding_step_by_step_equals_the_full_forward(name: str, kind: str) -> None:
    model = make(name).double()
    floater.attach(model, MOVING, sites=kind)
    check_decoding(name, model)


@pytest.mark.parametrize("name", ["gpt2"])
def test_chunked_prefill_and_assisted_decoding(name: str) -> None:
    model = make(name).double()
    floater.attach(model, MOVING)
    assistant = copy.deepcopy(model)
    inputs = {key: value[:1] for key, value in generation_inputs(name).items()}
    with torch.no_grad():
        plain = model.generate(**inputs, max_new_tokens=10, do_sample=False)
        chunked = model.generate(**inputs, max_new_tokens=10, do_sample=False, prefill_chunk_size=3)
        assisted = model.generate(
            **inputs, max_new_tokens=10, do_sample=False, assistant_model=assistant
        )
    assert torch.equal(plain, chunked)
    assert torch.equal(plain, assisted)


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
            whole = model.generate(**inputs, **settings, use_cache=cache)
            again = model.generate(
                encoder_outputs=model.get_encoder()(**inputs), **mask, **settings, use_cache=cache
            )
            assert torch.equal(whole, again)


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
        with pytest.warns(UserWarning, match="none as padding; pass the encoder's whole output"):
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
