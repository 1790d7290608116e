"""Comparisons as Markdown."""

from __future__ import annotations

from floater.runs.comparison import Comparison, VariantScore
from floater.tasks.understanding.comparison_tables import count_wins, markdown


def comparison(name: str, base: str, difference: float, low: float, high: float) -> Comparison:
    row = VariantScore(
        variant="floater",
        test_set="valid",
        against=base,
        measure="loss",
        more_is_better=False,
        difference=difference,
        low=low,
        high=high,
        p_value=0.01,
        base=1.0,
        other=1.0 + difference,
    )
    return Comparison(name=name, main="loss", more_is_better=False, base=base, rows=[row])


def test_a_base_of_another_name_is_named() -> None:
    rows = [comparison("one", "base", -0.1, -0.2, -0.05), comparison("two", "cycle", 0.1, -0.1, 0)]
    text = markdown(rows)
    assert "- two: the base is cycle." in text
    assert "one: the base" not in text


def test_wins_of_a_loss_are_those_that_fall() -> None:
    rows = [comparison("one", "base", -0.1, -0.2, -0.05), comparison("two", "base", 0.1, -0.1, 0.2)]
    assert count_wins(rows)["floater"] == {
        "wins": 1,
        "losses": 1,
        "ties": 0,
        "clear wins": 1,
        "clear losses": 0,
        "unclear": 1,
    }
