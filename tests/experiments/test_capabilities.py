from __future__ import annotations

from floater.experiments.capabilities import TABLE_1, capabilities, capability_table


def test_table_1_comes_out_as_the_paper_says_but_for_the_reach_of_relative_positions() -> None:
    row_marks = {
        row.name: (row.inductive, row.data_driven, row.parameter_efficient)
        for row in capabilities(2, 16, 24)
    }
    assert row_marks["Sinusoidal"] == (True, False, True)
    assert row_marks["Learned table"] == (False, True, False)
    assert row_marks["Relative"] == (True, True, True)
    assert row_marks["FLOATER (flow)"] == (True, True, True)
    assert row_marks["RNN, 2 layers, vector"] == (True, True, True)
    assert row_marks["No position"] == (True, False, True)
    rows = {str(row[0]): row[1:4] for row in capability_table(16, 24).rows}
    differing = [
        name for name, cells in TABLE_1.items() if ", ".join(map(str, rows[name])) != cells
    ]
    assert differing == ["Relative"]  # for the paper not inductive, see the note of the table


def test_relative_positions_are_counted_with_the_size_of_a_head() -> None:
    counts = {row.name: row.parameters for row in capabilities(6, 512, 24)}
    assert counts["Relative"] == 6 * 2 * (2 * 16 + 1) * 512 // 8 == 25_344
