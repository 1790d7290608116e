"""Every item at the scale smoke, smaller still where only the way is tested; the paper's sizes as far as they can be checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from floater import cli
from floater.errors import ArgumentError, FloaterError
from floater.experiments.arms import Arm, Sources
from floater.experiments.checking import build_empty
from floater.experiments.item import Order, Training
from floater.experiments.reproduce import ITEMS, reproduce
from floater.report.results import Mean, Paper, Results
from floater.tasks.translation.model import position_parameters

QUIET = Console(quiet=True)


def run(name: str, out: Path, keys: tuple[str, ...] = ()) -> Results:
    found = reproduce(name, "smoke", out, seeds=[0], workers=1, console=QUIET, keys=keys)
    assert found is not None
    assert Results.read(out / f"{name}-smoke") == found
    assert (out / f"{name}-smoke" / "report.html").stat().st_size > 10_000
    return found


def trained(name: str) -> Training:
    item = ITEMS[name]
    assert isinstance(item, Training)
    return item


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where items find each other's runs."""
    return tmp_path_factory.mktemp("reproductions")


@pytest.mark.slow
def test_translation_has_a_row_an_arm_with_the_papers_numbers_marked(folder: Path) -> None:
    found = run("nmt", folder)
    rows = {str(row[0]): row for row in found.tables[0].rows}
    assert len(rows) == len(trained("nmt").arms) == len(found.runs)
    assert rows["flow, all blocks"][-1] == Paper(paper=28.6)
    assert isinstance(rows["flow, all blocks"][1], Mean)
    assert re.match(r"sinusoidal-more: [+-]\d", str(rows["flow, q, k, v, warm-started"][-2]))


@pytest.mark.slow
def test_short_to_long_is_measured_in_bins_and_drawn(folder: Path) -> None:
    found = run("s2l", folder)
    assert [table.columns[1].split(" ")[0] for table in found.tables[:3]] == ["0-32"] * 3
    assert len(found.figures[0].series) == 6
    assert found.figures[0].x == ["0-32", "32-64", "64+"]
    assert found.tables[3].note.endswith("tokens, as in training, and of 64+.")
    assert (folder / "s2l-smoke" / "figure-1.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_recurrent_networks_are_counted_as_the_paper_counts(folder: Path) -> None:
    rows = {str(row[0]): row for row in run("rnn", folder).tables[0].rows}
    d = 32
    assert rows["flow"][3] == 2 * ((d + 1) * d + d)
    assert rows["recurrent, 1 layer, scalar"][3] == (d + 1) * d + d
    assert rows["recurrent, 2 layers, vector"][3] == 2 * (2 * d * d + d)


@pytest.mark.slow
def test_heat_maps_borrow_the_runs_of_other_items(folder: Path) -> None:
    found = run("heatmaps", folder)
    assert (folder / "heatmaps-smoke" / "heatmaps.png").read_bytes()[:4] == b"\x89PNG"
    assert all((folder / "heatmaps-smoke" / name / "positions.safetensors").exists() for name in found.runs)
    clamped = next(row for row in found.tables[0].rows if row[0] == "Position embedding")
    assert isinstance(clamped[1], Mean)
    assert clamped[1].mean > 0


@pytest.mark.slow
def test_efficiency_measures_time_memory_and_loss(tmp_path: Path) -> None:
    found = run("efficiency", tmp_path, ("sinusoidal", "flow-blocks", "kept"))
    rows = {str(row[0]): row for row in found.tables[0].rows}
    assert rows["sinusoidal"][2] == 0
    for row in rows.values():
        assert all(cell is not None for cell in row)
        assert row[1] > 0  # type: ignore[operator]


def test_capabilities_train_nothing(tmp_path: Path) -> None:
    assert run("capabilities", tmp_path).summary[0].endswith("FLOATER (flow).")


@pytest.mark.parametrize(
    ("name", "arm", "parameters"),
    [
        ("rnn", "flow", 526_336),
        ("rnn", "recurrent, 1 layer, scalar", 263_168),
        ("rnn", "recurrent, 2 layers, scalar", 526_336),
        ("nmt", "flow, all blocks", 526_336),
    ],
)
def test_the_papers_sizes_build_without_memory(name: str, arm: str, parameters: int) -> None:
    config = trained(name).configs("paper")[arm]
    model = build_empty(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    sites, dim = 12, 512
    assert position_parameters(model) == parameters + sites * dim
    block = 4 * (dim * dim + dim) + 2 * dim * 2048 + 2048 + dim + 4 * dim
    base = 6 * (2 * block + 4 * (dim * dim + dim) + 2 * dim) + 32_000 * dim
    counted = sum(parameter.numel() for key, parameter in model.named_parameters() if "embed_positions" not in key)
    assert counted - position_parameters(model) == base


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", ITEMS)
def test_configs_of_every_scale_resolve(name: str, scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(name, scale, Path("unused"), seeds=[0], workers=1, console=Console(width=200), check_only=True)
    assert ITEMS[name].title in capsys.readouterr().out


def test_what_cannot_be_reproduced_is_said_in_one_line(tmp_path: Path) -> None:
    def ask(name: str, scale: str, *keys: str) -> str:
        with pytest.raises(FloaterError) as raised:
            reproduce(name, scale, tmp_path, seeds=[0], workers=1, console=QUIET, keys=keys)
        return str(raised.value)

    assert ask("table9", "smoke").startswith("The item must be one of capabilities, nmt, glue, race, squad, s2l")
    assert ask("s2l", "huge") == "`--scale` must be one of smoke, small, paper, but is 'huge'."
    assert "this machine has none; `floater reproduce s2l --scale paper --check`" in ask("s2l", "paper")
    assert "must have sinusoidal too" in ask("nmt", "smoke", "flow-qkv")
    assert "must be among sinusoidal" in ask("s2l", "smoke", "nonsense")
    result = CliRunner().invoke(cli.app, ["reproduce", "s2l", "--seeds", "0,x"])
    assert isinstance(result.exception, ArgumentError)
    assert "`--seeds` must be whole numbers" in str(result.exception)
    result = CliRunner().invoke(cli.app, ["reproduce", "s2l", "--seeds", "1,1"])
    assert "must differ from each other" in str(result.exception)


def test_arms_may_be_any_config_of_the_item() -> None:
    item = trained("s2l")
    order = Order("small", Path("unused"), [0], 1, QUIET, ["sinusoidal", "flow-blocks-horizon"])
    found = item.configs("small", order)
    assert list(found) == ["sinusoidal", "flow-blocks-horizon"]
    assert found["sinusoidal"].data.max_source_tokens == 47
    shorter = Order("small", Path("unused"), [0], 1, QUIET, ["sinusoidal"], ["training.updates=7"])
    for name in ("s2l", "efficiency"):
        assert trained(name).configs("small", shorter)["sinusoidal"].training.updates == 7
    for name in ("nmt", "s2l", "rnn", "heatmaps", "efficiency"):  # an hour on two cores
        asked = Order("small", Path("unused"), [0], 1, QUIET)
        assert all(config.training.updates <= 2000 for config in trained(name).configs("small", asked).values()), name
    with pytest.raises(FloaterError, match=r"configs/translation/none\.yaml must be a config file"):
        Sources("translation/{key}.yaml", "").settings(Arm("none", "none"), "small")
