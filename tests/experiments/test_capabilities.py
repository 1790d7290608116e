from __future__ import annotations

from floater.experiments.capabilities import PAPER, capabilities, table


def test_table_1_comes_out_as_the_paper_says() -> None:
    found = {
        row.name: (row.inductive, row.data_driven, row.parameter_efficient)
        for row in capabilities(2, 16, 24)
    }
    assert found["Sinusoidal"] == (True, False, True)
    assert found["Learned table"] == (False, True, False)
    assert found["FLOATER (flow)"] == (True, True, True)
    assert found["RNN, 2 layers, vector"] == (True, True, True)
    assert found["No position"] == (True, False, True)
    rows = {str(row[0]): row[1:4] for row in table(16, 24).rows}
    assert all(", ".join(map(str, rows[name])) == words for name, words in PAPER.items())
