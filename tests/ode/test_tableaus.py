"""The tableaus are right: order conditions of every rooted tree, up to the order each method
claims.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations_with_replacement
from math import prod

import pytest
import torch
from torch import Tensor

from floater.ode import Tableau
from floater.ode.tableaus import DORMAND_PRINCE_5, EULER, MIDPOINT, RUNGE_KUTTA_4

Tree = tuple["Tree", ...]

TABLEAUS = (EULER, MIDPOINT, RUNGE_KUTTA_4, DORMAND_PRINCE_5)
DENSE_ORDER = {"euler": 1, "midpoint": 2, "rk4": 3, "dopri5": 4}

each_tableau = pytest.mark.parametrize("tableau", TABLEAUS, ids=lambda tableau: tableau.name)


@cache
def trees(order: int) -> frozenset[Tree]:
    """All rooted trees with `order` vertices; a tree is the sorted tuple of its branches."""
    if order == 1:
        return frozenset({()})
    computed = set()
    for sizes in partitions(order - 1):
        choices: set[Tree] = {()}
        for size in set(sizes):
            branches = combinations_with_replacement(sorted(trees(size)), sizes.count(size))
            choices = (
                {(*held, *more) for held in choices for more in branches}
                if sizes.count(size)
                else choices
            )
        computed |= {tuple(sorted(choice)) for choice in choices}
    return frozenset(computed)


def partitions(total: int, largest: int | None = None) -> list[tuple[int, ...]]:
    if total == 0:
        return [()]
    top = min(total, largest or total)
    return [(part, *rest) for part in range(top, 0, -1) for rest in partitions(total - part, part)]


def vertices(tree: Tree) -> int:
    return 1 + sum(vertices(branch) for branch in tree)


def density(tree: Tree) -> int:
    return vertices(tree) * prod(density(branch) for branch in tree)


def weight(tree: Tree, coupling: Tensor) -> Tensor:
    """The tree's elementary weight at each stage."""
    value = torch.ones(len(coupling), dtype=torch.float64)
    for branch in tree:
        value = value * (coupling @ weight(branch, coupling))
    return value


def coupling_of(tableau: Tableau) -> Tensor:
    return torch.tensor(tableau.coupling, dtype=torch.float64)


def up_to(order: int) -> list[Tree]:
    return [tree for size in range(1, order + 1) for tree in sorted(trees(size))]


def test_trees_are_counted_right() -> None:
    assert [len(trees(order)) for order in range(1, 7)] == [1, 1, 2, 4, 9, 20]


@each_tableau
def test_nodes_are_row_sums(tableau: Tableau) -> None:
    torch.testing.assert_close(
        coupling_of(tableau).sum(1),
        torch.tensor(tableau.nodes, dtype=torch.float64),
        rtol=0,
        atol=1e-14,
    )


@each_tableau
def test_explicit_and_last_stage_is_the_next_first(tableau: Tableau) -> None:
    coupling = coupling_of(tableau)
    assert torch.equal(coupling.triu(), torch.zeros_like(coupling))
    assert tableau.nodes[0] == 0
    assert tableau.nodes[-1] == 1


@each_tableau
def test_dense_output_ends_in_the_step(tableau: Tableau) -> None:
    dense = torch.tensor(tableau.dense, dtype=torch.float64)
    torch.testing.assert_close(dense.sum(1), coupling_of(tableau)[-1], rtol=0, atol=1e-14)


@each_tableau
def test_dense_output_begins_with_the_first_slope(tableau: Tableau) -> None:
    dense = torch.tensor(tableau.dense, dtype=torch.float64)
    assert dense[:, 0].tolist() == [1.0] + [0.0] * (tableau.stages - 1)


@pytest.mark.parametrize("tableau", TABLEAUS[1:], ids=lambda tableau: tableau.name)
def test_dense_output_arrives_with_the_last_slope(tableau: Tableau) -> None:
    dense = torch.tensor(tableau.dense, dtype=torch.float64)
    slope = dense @ torch.arange(1, tableau.degree + 1, dtype=torch.float64)
    expected = torch.zeros(tableau.stages, dtype=torch.float64)
    expected[-1] = 1
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-13)


@each_tableau
def test_order_conditions(tableau: Tableau) -> None:
    coupling = coupling_of(tableau)
    for tree in up_to(tableau.order):
        assert float(coupling[-1] @ weight(tree, coupling)) == pytest.approx(
            1 / density(tree), abs=1e-13
        ), tree


@each_tableau
def test_order_is_not_higher_than_claimed(tableau: Tableau) -> None:
    coupling = coupling_of(tableau)
    misses = [
        float(coupling[-1] @ weight(tree, coupling)) - 1 / density(tree)
        for tree in trees(tableau.order + 1)
    ]
    assert max(map(abs, misses)) > 1e-5


@each_tableau
@pytest.mark.parametrize("theta", [0.1, 0.37, 0.5, 0.93])
def test_order_conditions_of_dense_output(tableau: Tableau, theta: float) -> None:
    coupling = coupling_of(tableau)
    dense = torch.tensor(tableau.dense, dtype=torch.float64)
    row = dense @ torch.tensor(
        [theta ** (j + 1) for j in range(tableau.degree)], dtype=torch.float64
    )
    for tree in up_to(DENSE_ORDER[tableau.name]):
        expected = theta ** vertices(tree) / density(tree)
        assert float(row @ weight(tree, coupling)) == pytest.approx(expected, abs=1e-13), tree


def test_error_weights_are_those_of_an_embedded_method_of_order_4() -> None:
    coupling = coupling_of(DORMAND_PRINCE_5)
    assert DORMAND_PRINCE_5.error is not None
    error = torch.tensor(DORMAND_PRINCE_5.error, dtype=torch.float64)
    assert float(error.sum()) == pytest.approx(0, abs=1e-15)
    for tree in up_to(4):
        assert float(error @ weight(tree, coupling)) == pytest.approx(0, abs=1e-14), tree
    assert max(abs(float(error @ weight(tree, coupling))) for tree in trees(5)) > 1e-5


def test_only_dormand_prince_estimates_its_error() -> None:
    assert [tableau.name for tableau in TABLEAUS if tableau.error is not None] == ["dopri5"]
