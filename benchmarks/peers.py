"""Models of x-transformers with its learned, its rotary and no positions, where it is installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from step_models import Shape

try:
    import x_transformers
except ImportError:
    x_transformers = None

INSTALLED = x_transformers is not None
BASE = "x-transformers-none"
SETTINGS: dict[str, dict[str, bool]] = {
    BASE: {},
    "x-transformers-learned": {"use_abs_pos_emb": True},
    "x-transformers-rotary": {"rotary_pos_emb": True},
}


class Peer(nn.Module):
    """A model of x-transformers of some shape, called like one of transformers.

    Its bodies differ from those of transformers in many ways, so it is compared with itself without
    positions.

    Args:
        name: one of SETTINGS.
        shape: sizes, of a model with one stack.
    """

    def __init__(self, name: str, shape: Shape) -> None:
        super().__init__()
        layers = x_transformers.Decoder if shape.kind == "llama" else x_transformers.Encoder
        self._causal = shape.kind == "llama"
        self.body = x_transformers.TransformerWrapper(
            num_tokens=shape.vocabulary,
            max_seq_len=shape.length,
            use_abs_pos_emb="use_abs_pos_emb" in SETTINGS[name],
            tie_embedding=True,
            attn_layers=layers(
                dim=shape.width,
                depth=shape.layers,
                heads=shape.heads,
                attn_dim_head=shape.width // shape.heads,
                attn_kv_heads=shape.key_heads,
                attn_flash=True,
                ff_mult=shape.feed_forward / shape.width,
                rotary_emb_dim=shape.width // shape.heads,
                rotary_pos_emb="rotary_pos_emb" in SETTINGS[name],
            ),
        )

    def forward(self, input_ids: Tensor, labels: Tensor, **_: Any) -> SimpleNamespace:
        logits = self.body(input_ids)
        if self._causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return SimpleNamespace(loss=F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
