"""Heads of q, k and v: how a layer that computes all of them lays them out, and how grouped queries
take the encodings of fewer heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..encoders.rotary import rotate
from ..errors import LayoutError

Arrangement = Literal["parts", "heads"]
"""Order of a fused projection's output.

parts: all heads of q, then those of k, then those of v (gpt2, phi3, modernbert).
heads: for each head of k, its queries, then k, then v (gpt_neox, bloom, falcon).
"""


@dataclass(frozen=True)
class FusedHeads:
    """The output of a fused projection: `groups` times the heads of q, of k and of v.

    Attributes:
        groups: number of repetitions.
        queries: heads of q in each of them.
        keys: heads of k in each of them, and as many of v.
        head_size: size of a head.
    """

    groups: int
    queries: int
    keys: int
    head_size: int

    @classmethod
    def of(cls, base: nn.Module, width: int, arrangement: Arrangement, name: str) -> FusedHeads:
        """The layout of a fused projection.

        Args:
            base: the base model, whose config has the numbers of heads.
            width: size of the projection's output.
            arrangement: order of the heads.
            name: the projection, for error messages.
        """
        # without numbers of heads, q, k and v are thirds
        queries, keys = count_heads(base) or (1, 1)
        if width % (queries + 2 * keys):
            raise LayoutError(
                f"A fused projection must hold the heads of q, k and v, but {name} has an output "
                f"of size {width} for {queries} + {keys} + {keys} heads."
            )
        size = width // (queries + 2 * keys)
        if arrangement == "parts":
            return cls(1, queries, keys, size)
        return cls(keys, queries // keys, 1, size)

    @property
    def encoding_size(self) -> int:
        """Size of an encoding of q, k or v. With grouped queries, that of q is as small as those of
        k and v.
        """
        return self.groups * self.keys * self.head_size

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Join encodings [..., encoding_size] of q, k and v to a bias of the projection's output;
        those that lack are zero.
        """
        example = next(iter(parts.values()))
        heads = []
        for letter in "qkv":
            part = parts.get(letter)
            part = torch.zeros_like(example) if part is None else part
            part = part.unflatten(-1, (self.groups, self.keys, self.head_size))
            if letter == "q" and self.queries > self.keys:
                part = part.repeat_interleave(self.queries // self.keys, -2)
            heads.append(part)
        return torch.cat(heads, -2).flatten(-3)

    def rotate(self, out: Tensor, letters: Sequence[str], cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotate the heads of some of q, k and v; angles have shape [..., 1, head_size/2]."""
        heads = out.unflatten(-1, (self.groups, -1, self.head_size))
        parts = heads.split([self.queries, self.keys, self.keys], -2)
        cosine, sine = cosine.unsqueeze(-2), sine.unsqueeze(-2)
        turned = [
            rotate(part, cosine, sine) if letter in letters else part
            for letter, part in zip("qkv", parts, strict=True)
        ]
        return torch.cat(turned, -2).flatten(-3)


@dataclass(frozen=True)
class QueryGroups:
    """Grouped queries: several heads of q for each head of k, which take the same encoding.

    Attributes:
        queries: heads of q for each head of k.
        head_size: size of a head.
    """

    queries: int
    head_size: int

    def heads(self, encoding: Tensor) -> Tensor:
        """The encodings [..., size of k] as a view [..., heads of k, queries, head]: the queries
        of a head of k share memory.
        """
        heads: Tensor = encoding.unflatten(-1, (-1, 1, self.head_size))
        return heads.expand(*heads.shape[:-2], self.queries, -1)

    def spread(self, encoding: Tensor) -> Tensor:
        """Repeat the encodings [..., size of k] of the heads of k for their heads of q."""
        return self.heads(encoding).flatten(-3)


def count_heads(base: nn.Module, stack: str = "encoder") -> tuple[int, int] | None:
    """Number of heads of q and of k in a stack, None if the config has none. With grouped queries,
    k has fewer.
    """
    config: Any = getattr(base, "config", None)
    own = () if stack == "encoder" else (f"{stack}_attention_heads",)
    queries = _first_number(config, *own, *_QUERY_HEADS)
    if queries is None:
        return None
    if getattr(config, "multi_query", False) and not getattr(
        config, "new_decoder_architecture", False
    ):
        return queries, 1  # falcon
    return queries, _first_number(config, "num_key_value_heads", "num_kv_heads") or queries


_QUERY_HEADS = (
    "num_attention_heads",
    "encoder_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
)


def _first_number(config: object, *names: str) -> int | None:
    """The first of these settings that is a number."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
