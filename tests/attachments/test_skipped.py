"""No forward pass skips its attachment."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import floater
from floater.errors import (
    AttachmentError,
)

from .attach_models import MOVING, VOCABULARY, WIDTH, batch, logits, make


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
        ("nothing", "no block of the encoder was called"),
        ("block", "the projection q of block 1 was not called"),
    ):
        model = Deaf(calls).eval()
        attached = floater.attach(model, MOVING, sites=sites)
        with pytest.raises(AttachmentError, match=message), torch.no_grad():
            model(x)
        with attached.disabled():
            model(x)
    heard = Deaf("projection").eval()
    floater.attach(heard, MOVING, sites=sites)
    with torch.no_grad():
        assert heard(x).shape == x.shape


def test_a_block_by_itself_is_refused_and_leaves_nothing_behind() -> None:
    model, inputs = make("bert"), batch("bert")
    attached = floater.attach(model, MOVING)
    hidden = torch.randn(1, 4, WIDTH)
    with pytest.raises(
        AttachmentError, match="BertLayer was called without the encodings of its tokens"
    ):
        model.bert.encoder.layer[0](hidden)
    with attached.disabled():
        model.bert.encoder.layer[0](hidden)
    with torch.no_grad():
        before = logits(model, inputs)
        with pytest.raises(IndexError):
            model(input_ids=torch.full((1, 4), 10 * VOCABULARY))
        assert torch.equal(logits(model, inputs), before)
