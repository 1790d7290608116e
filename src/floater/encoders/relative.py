"""Relative positions (Shaw, Uszkoreit and Vaswani 2018): learned vectors for clipped distances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import NotNegative, PositiveInt
from ..errors import ArgumentError
from .base import EncoderConfig


class RelativeConfig(EncoderConfig):
    """Settings of :class:`Relative`."""

    distance: PositiveInt = 16
    """K, the largest distance with a vector of its own. All that are larger share the last one."""
    init_std: NotNegative = 0.0
    """Standard deviation of the initial vectors. With 0, a fresh encoder does not change a model's
    outputs, except for rounding.
    """

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> Relative:
        return Relative(self, sites, dim)


@dataclass(frozen=True)
class DistanceVectors:
    """The vectors [2K+1, dim] of the distances -K … K at one site, for keys and for values."""

    keys: Tensor
    values: Tensor

    def rows(self, queries: int, keys: int, first: int | Tensor, device: torch.device) -> Tensor:
        """Rows [queries, keys] of the vectors of j - i, for keys at the places j = 0, 1, … and
        queries at the places i = first, first + 1, ….
        """
        places = torch.arange(keys, device=device)
        own = torch.arange(queries, device=device) + first
        reach = len(self.keys) // 2
        return (places - own.unsqueeze(1)).clamp(-reach, reach) + reach


class Relative(nn.Module):
    """Adds a vector for the distance j - i to key j and to value j, as query i sees them.

    Distances are clipped to [-K, K]. The vectors have the size of a head and are shared by the
    heads of a site, the self-attention of one block: 2·(2K+1)·dim parameters per site. They depend
    on the places of tokens in the input, not on times: there is nothing between two places.

    Args:
        config: the settings.
        sites: number of self-attentions.
        dim: size of a head.
    """

    def __init__(self, config: RelativeConfig, sites: int, dim: int) -> None:
        super().__init__()
        for name, value in (("sites", sites), ("dim", dim)):
            if not isinstance(value, int) or value < 1:
                raise ArgumentError(f"`{name}` must be a positive integer, but is {value!r}.")
        self.config, self.sites, self.dim, self.delta = config, sites, dim, config.delta
        shape = (sites, 2 * config.distance + 1, dim)
        self.keys = nn.Parameter(torch.zeros(shape))
        self.values = nn.Parameter(torch.zeros(shape))
        if config.init_std:
            nn.init.normal_(self.keys, std=config.init_std)
            nn.init.normal_(self.values, std=config.init_std)

    def vectors(self) -> list[DistanceVectors]:
        """The vectors of each site."""
        return [
            DistanceVectors(keys, values)
            for keys, values in zip(self.keys.unbind(), self.values.unbind(), strict=True)
        ]

    def forward(
        self, site: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """The self-attention of a site: heads [..., length, dim] of the same tokens → outputs.

        Args:
            site: number of the site.
            query: queries.
            key: keys.
            value: values.
            mask: see :func:`attend`.
        """
        return attend(query, key, value, self.vectors()[site], mask=mask)[0]

    def num_parameters(self) -> int:
        """Return the number of parameters."""
        return self.keys.numel() + self.values.numel()

    def extra_repr(self) -> str:
        return f"sites={self.sites}, dim={self.dim}, distance={self.config.distance}"


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vectors: DistanceVectors,
    *,
    first: int | Tensor = 0,
    mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention with vectors for distances: logits q_i·(k_j + a^K_ij) and outputs
    Σ_j α_ij (v_j + a^V_ij).

    A query meets each of the 2K+1 vectors once. Its products with them are looked up by distance,
    and its weights are summed by distance, so that nothing has the shape [queries, keys, dim].

    Args:
        query: [batch, heads, queries, dim].
        key: [batch, heads, keys, dim].
        value: the same shape as `key`.
        vectors: of the distances.
        first: place of the first query among the keys, which is the number of cached tokens.
        mask: see :func:`attention_weights`.
        scaling: factor of the logits; default: dim^-½.
        dropout: share of the weights that are set to zero.

    Returns:
        Outputs [batch, heads, queries, dim] and weights [batch, heads, queries, keys].
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    key_vectors, value_vectors = (
        part.to(query.device, query.dtype) for part in (vectors.keys, vectors.values)
    )
    logits = query @ key.transpose(-1, -2)
    rows = vectors.rows(query.shape[-2], key.shape[-2], first, query.device).expand(logits.shape)
    logits = logits + (query @ key_vectors.t()).gather(-1, rows)
    weights = attention_weights(logits * scaling, mask, dropout).to(query.dtype)
    sums = weights.new_zeros(*weights.shape[:-1], len(value_vectors)).scatter_add(-1, rows, weights)
    return weights @ value + sums @ value_vectors, weights


def attention_weights(logits: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Softmax over the keys, in float32 at least.

    Args:
        logits: [batch, heads, queries, keys].
        mask: broadcasts to them: true where attention is allowed, or numbers that are added.
        dropout: share of the weights that are set to zero.
    """
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    elif mask is not None:
        logits = logits + mask
    precise = torch.promote_types(logits.dtype, torch.float32)
    return F.dropout(logits.softmax(-1, dtype=precise), dropout)
