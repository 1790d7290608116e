from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.tasks.translation.batches import Collate, Examples, TokenBatches
from floater.training.loader import EpochLoader
from floater.training.world import World


def lengths(count: int = 500, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    target = random.integers(2, 40, count)
    return np.stack((np.clip(target + random.integers(-4, 5, count), 2, None), target), 1)


@given(st.integers(1, 200), st.integers(50, 400), st.integers(0, 5), st.integers(1, 4))
def test_every_example_comes_once_an_epoch_within_the_budget(
    count: int, budget: int, epoch: int, together: int
) -> None:
    sizes = lengths(count, count)
    batches = TokenBatches(sizes, budget, 7, together=together)
    batches.set_epoch(epoch)
    found = list(batches)
    assert len(found) == len(batches)
    assert sorted(number for batch in found for number in batch) == list(range(count))
    for batch in found:
        assert len(batch) == 1 or len(batch) * sizes[batch].max() <= budget
    if count >= 20 * together:
        assert len(found) % together == 0


def test_epochs_differ_in_order_and_in_company_but_not_in_shapes() -> None:
    sizes = lengths()
    batches = TokenBatches(sizes, 300, 7)
    first = list(batches)
    assert list(batches) == first
    batches.set_epoch(1)
    second = list(batches)
    assert first != second
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    shapes = [
        sorted((len(batch), int(sizes[batch].max())) for batch in epoch)
        for epoch in (first, second)
    ]
    assert shapes[0] == shapes[1]
    assert list(TokenBatches(sizes, 300, 8)) != first


def test_processes_share_the_batches_out_and_take_equally_many() -> None:
    sizes = lengths()
    whole = TokenBatches(sizes, 300, 7, together=6)
    parts = [TokenBatches(sizes, 300, 7, world=World(3, i), together=6) for i in range(3)]
    for part in (whole, *parts):
        part.set_epoch(4)
    shares = [list(part) for part in parts]
    assert {len(share) for share in shares} == {len(whole) // 3}
    interleaved = [batch for group in zip(*shares, strict=True) for batch in group]
    assert interleaved == list(whole)


def test_little_is_padded() -> None:
    assert TokenBatches(lengths(5000), 2000, 0).padding() < 0.1


def test_padding_counts_what_the_collator_pads() -> None:
    sizes = lengths(300)
    examples = Examples([[5] * n for n in sizes[:, 0]], [[6] * n for n in sizes[:, 1]])
    batches = TokenBatches(sizes, 300, 0)
    collate, real, padded = Collate(0, 1), 0, 0
    for batch in batches:
        tensors = collate([examples[i] for i in batch])
        real += int(tensors["attention_mask"].sum()) + int(tensors["labels"].ne(-100).sum())
        padded += tensors["input_ids"].numel() + tensors["labels"].numel()
    assert batches.padding() == pytest.approx(1 - real / padded)


def test_the_decoder_sees_the_labels_one_place_later() -> None:
    tensors = Collate(0, 1)([([5, 6, 2], [7, 8, 9, 2]), ([5, 2], [7, 2])])
    assert tensors["decoder_input_ids"].tolist() == [[1, 7, 8, 9], [1, 7, 0, 0]]
    assert tensors["labels"].tolist() == [[7, 8, 9, 2], [7, 2, -100, -100]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_the_loader_hands_the_epoch_on() -> None:
    sizes = lengths(100)
    examples = Examples(
        [[5] * n for n in sizes[:, 0]], [[i] * n for i, n in enumerate(sizes[:, 1])]
    )
    loader = EpochLoader(examples, TokenBatches(sizes, 200, 3), Collate(0, 1), 0)
    orders = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        orders.append([batch["labels"][:, 0].tolist() for batch in loader])
    assert orders[0] == orders[2] != orders[1]
