"""Attention with relative positions, against sums written out one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from floater.encoders import DistanceVectors, RelativeConfig
from floater.encoders.relative import attend
from floater.errors import ArgumentError, ConfigError
from relative_reference import written_out

BATCH, HEADS, DIM, REACH = 2, 3, 4, 2


def inputs(queries: int, keys: int) -> list[Tensor]:
    """Query, key, value, and the vectors of keys and of values."""
    shapes = [
        (BATCH, HEADS, queries, DIM),
        *[(BATCH, HEADS, keys, DIM)] * 2,
        *[(2 * REACH + 1, DIM)] * 2,
    ]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def causal(queries: int, keys: int, first: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(first).expand(BATCH, -1, -1)


def padded(queries: int, keys: int) -> Tensor:
    mask = torch.ones(BATCH, queries, keys, dtype=torch.bool)
    mask[1, :, keys - 3 :] = False
    return mask


CASES: dict[str, tuple[int, int, int, Tensor | None]] = {
    "self": (7, 7, 0, None),
    "one token": (1, 1, 0, None),
    "causal": (7, 7, 0, causal(7, 7, 0)),
    "padded": (7, 7, 0, padded(7, 7)),
    "one cached step": (1, 9, 8, causal(1, 9, 8)),
    "several cached steps": (3, 9, 6, causal(3, 9, 6)),
    "a cache with room": (2, 9, 3, causal(2, 9, 3)),
}


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_attention_and_its_gradients_are_those_of_the_sums(case: str, additive: bool) -> None:
    queries, keys, first, allowed = CASES[case]
    tensors = inputs(queries, keys)
    query, key, value, *vectors = tensors
    mask = None if allowed is None else allowed.unsqueeze(1)
    if mask is not None and additive:
        least = torch.finfo(torch.float64).min
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, least)
    ours, weights = attend(query, key, value, DistanceVectors(*vectors), first=first, mask=mask)
    theirs = written_out(query, key, value, DistanceVectors(*vectors), first, allowed)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    upstream = torch.randn_like(ours)
    for own, other in zip(
        torch.autograd.grad(ours, tensors, upstream),
        torch.autograd.grad(theirs, tensors, upstream),
        strict=True,
    ):
        torch.testing.assert_close(own, other, rtol=1e-11, atol=1e-11)


def test_all_distances_past_the_last_are_one() -> None:
    """The order of keys that are further away than K does not matter; that of nearer ones does."""
    query, key, value, *tables = inputs(12, 12)
    vectors = DistanceVectors(*tables)
    out, _ = attend(query, key, value, vectors)
    order = torch.arange(12)
    order[:4] = torch.tensor([2, 0, 3, 1])  # all more than 2 before the tokens from 6 on
    far, _ = attend(query, key[:, :, order], value[:, :, order], vectors)
    torch.testing.assert_close(far[:, :, 6:], out[:, :, 6:], rtol=1e-12, atol=1e-12)
    assert (far[:, :, :5] - out[:, :, :5]).abs().amax((0, 1, 3)).min() > 1e-3
    order = torch.arange(12)
    order[5:7] = torch.tensor([6, 5])
    near, _ = attend(query, key[:, :, order], value[:, :, order], vectors)
    assert (near[:, :, 6] - out[:, :, 6]).abs().max() > 1e-3


def test_dropout_acts_on_keys_and_distances_alike() -> None:
    query, key, value, *tables = inputs(40, 40)
    vectors = DistanceVectors(*tables)
    out, weights = attend(query, key, value, vectors, dropout=0.5)
    dropped = (weights == 0).double().mean()
    assert 0.4 < float(dropped) < 0.6
    rows = vectors.rows(40, 40, 0, torch.device("cpu"))
    expected = weights @ value + torch.einsum("bhij,ijd->bhid", weights, vectors.values[rows])
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_nothing_has_a_vector_for_each_pair_of_tokens() -> None:
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            parts = out if isinstance(out, tuple | list) else (out,)
            largest = max(largest, *(p.numel() for p in parts if isinstance(p, Tensor)), 0)
            return out

    length = 30
    query, key, value, *tables = inputs(length, length)
    with Sizes():  # type: ignore[no-untyped-call]
        attend(query, key, value, DistanceVectors(*tables))[0].sum().backward()
    assert BATCH * HEADS * length * length <= largest < length * length * HEADS * DIM


def test_sites_have_vectors_of_their_own_and_are_counted() -> None:
    encoder = RelativeConfig(distance=16).build(6, 64)
    assert encoder.num_parameters() == 6 * 2 * 33 * 64
    assert not any(parameter.any() for parameter in encoder.parameters())
    random = RelativeConfig(distance=3, init_std=0.5).build(2, 8)
    assert 0.3 < float(random.keys.detach().std()) < 0.7
    query, key, value = torch.randn(3, 1, 2, 5, 8)
    assert (random(0, query, key, value) - random(1, query, key, value)).abs().max() > 1e-3
    random(1, query, key, value).sum().backward()
    for gradient in (random.keys.grad, random.values.grad):
        assert gradient is not None
        assert not gradient[0].any()
        assert gradient[1].any()


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="`distance` of RelativeConfig"):
        RelativeConfig(distance=0)
    with pytest.raises(ArgumentError, match="`dim` must be a positive integer, but is 0"):
        RelativeConfig().build(1, 0)
