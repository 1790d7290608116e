from __future__ import annotations

import pytest
from typer.testing import CliRunner

from floater import cli
from floater.experiments.capabilities import capabilities


def test_table_1_comes_out_as_the_paper_says() -> None:
    found = {row.name: (row.inductive, row.data_driven, row.parameter_efficient) for row in capabilities(2, 16, 24)}
    assert found["Sinusoidal"] == (True, False, True)
    assert found["Learned table"] == (False, True, False)
    assert found["FLOATER (flow)"] == (True, True, True)
    assert found["RNN, 2 layers, vector"] == (True, True, True)
    assert found["No position"] == (True, False, True)


def test_demo_prints_the_table_and_draws_the_heat_maps(tmp_path: object) -> None:
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path), "--dim", "16", "--length", "32"])
    assert result.exit_code == 0, result.output
    assert "FLOATER (flow)" in result.output
    assert "first half equal to the bit: True" in result.output
    with open(f"{tmp_path}/encodings.png", "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_mistakes_on_the_command_line_end_with_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(cli.app, ["demo", "--length", "0"])
    assert result.exit_code == 2
    monkeypatch.setattr("sys.argv", ["floater", "demo", "--dim", "1"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
