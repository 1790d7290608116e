"""Tables on the terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from floater.experiments.result_tables import seeds_note, show
from floater.runs.folder import RunFolder
from floater.runs.results import Mean, Paper, Results, Table

TABLE = Table(
    title="Translation",
    note="One seed.",
    columns=["encoder", "BLEU", "chrF", "position parameters", "training, s", "paper, BLEU"],
    rows=[
        [
            "flow, all blocks",
            Mean(mean=37.2, deviation=0.31, seeds=3),
            61.08,
            34304,
            8600.5,
            Paper(paper=28.6),
        ],
        ["learned table, input", 35.77, 60.0, 131072, 5789.5, None],
    ],
)


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_numbers_stay_whole_on_any_terminal(width: int) -> None:
    """A narrow terminal gets a paragraph a row instead of numbers that are broken in two."""
    said = StringIO()
    show(
        Results(item="nmt", scale="smoke", title="Translation", tables=[TABLE]),
        Console(file=said, width=width),
    )
    words = said.getvalue().split()
    for number in ("37.20", "0.31", "61.08", "34,304", "8600.50", "[28.60]", "131,072", "60.00"):
        assert number in words
    assert all(len(line) <= width for line in said.getvalue().splitlines())
    assert ("·" in words) == (width < 80)


@pytest.mark.parametrize("markup", [True, False])
@pytest.mark.parametrize("width", [5, 100])
def test_names_are_no_markup(width: int, markup: bool) -> None:
    odd = Table(
        title="[/red] title",
        note="[/b]",
        columns=["[/a]", "x"],
        rows=[["[/row]", "[red]cell[/red]"]],
    )
    said = StringIO()
    results = Results(item="nmt", scale="smoke", title="[/red]", tables=[odd], summary=["[/line]"])
    show(results, Console(file=said, width=width, markup=markup))
    told = "".join(said.getvalue().split())
    for words in ("[/red]title", "[/b]", "[/row]", "[red]cell[/red]", "[/line]"):
        assert words in told


def test_a_table_says_what_stands_after_plus_minus() -> None:
    runs = [RunFolder(Path(name)) for name in "abc"]
    assert seeds_note({"flow": runs[:1]}) == ""
    expected = " Means ± standard deviation of 3 seeds."
    assert seeds_note({"flow": runs, "rotary": runs[:1]}) == expected
