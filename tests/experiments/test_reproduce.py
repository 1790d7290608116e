"""Every item at the scale smoke, smaller still where only the way is tested; the paper's sizes as
far as they can be checked.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import get_type_hints

import pytest
from rich.console import Console
from typer.testing import CliRunner

from floater import cli
from floater.encoders import FlowConfig, LearnedConfig, RecurrentConfig, RelativeConfig
from floater.errors import ArgumentError, FloaterError
from floater.experiments.base import ReproductionRequest, TrainingItem
from floater.experiments.parameter_counts import build_translator
from floater.experiments.reproduce import ITEMS, reproduce
from floater.experiments.understanding import Comparisons
from floater.experiments.variants import SCALES, Scale, Sources, Variant
from floater.runs.results import Mean, Paper, Results
from floater.tasks.translation.model import position_parameters

QUIET = Console(quiet=True)


def run(name: str, out: Path, keys: tuple[str, ...] = ()) -> Results:
    found = reproduce(name, "smoke", out, seeds=[0], workers=1, console=QUIET, keys=keys)
    assert found is not None
    assert Results.read(out / f"{name}-smoke") == found
    assert (out / f"{name}-smoke" / "report.html").stat().st_size > 10_000
    return found


def trained(name: str) -> TrainingItem:
    item = ITEMS[name]
    assert isinstance(item, TrainingItem)
    return item


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where items find each other's runs."""
    return tmp_path_factory.mktemp("reproductions")


@pytest.mark.slow
def test_translation_has_a_row_per_variant_with_the_papers_numbers_marked(folder: Path) -> None:
    found = run("nmt", folder)
    rows = {str(row[0]): row for row in found.tables[0].rows}
    assert len(rows) == len(trained("nmt").variants) == len(found.runs)
    assert rows["flow, all blocks"][-1] == Paper(paper=28.6)
    assert isinstance(rows["flow, all blocks"][1], Mean)
    assert re.match(r"sinusoidal-more: [+-]\d", str(rows["flow, q, k, v, warm-started"][-2]))
    lead = found.tables[1]
    assert lead.columns == ["over", "all"]
    assert len(lead.rows) == len(rows) - 1
    ahead, behind = rows["rotary + flow, q, k, v"][1], rows[str(lead.rows[0][0])][1]
    assert isinstance(ahead, Mean)
    assert isinstance(behind, Mean)
    assert str(lead.rows[0][1]).startswith(f"{ahead.mean - behind.mean:+.2f} (")


@pytest.mark.slow
def test_short_to_long_is_measured_in_bins_and_drawn(folder: Path) -> None:
    found = run("s2l", folder)
    assert [table.columns[1].split(" ")[0] for table in found.tables[:3]] == ["0-32"] * 3
    assert len(found.figures[0].series) == len(trained("s2l").variants)
    assert found.figures[0].x == ["0-32", "32-64", "64+"]
    assert found.tables[3].note.endswith("tokens, as in training, and of 64+.")
    lead = found.tables[4]
    best = "rotary + flow, q, k, v"
    assert lead.title == f"Lead of {best} in BLEU (95 %, p)"
    others = [row[0] for row in found.tables[0].rows if row[0] != best]
    assert [row[0] for row in lead.rows] == others
    bleu = {str(row[0]): row[1] for row in found.tables[0].rows}
    for row in lead.rows:
        ahead, behind = bleu[best], bleu[str(row[0])]
        assert isinstance(ahead, Mean)
        assert isinstance(behind, Mean)
        assert str(row[1]).startswith(f"{ahead.mean - behind.mean:+.2f} (")
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
    assert all(
        (folder / "heatmaps-smoke" / name / "positions.safetensors").exists() for name in found.runs
    )
    clamped = next(row for row in found.tables[0].rows if row[0] == "Position embedding")
    assert isinstance(clamped[1], Mean)
    assert clamped[1].mean > 0


@pytest.mark.torture
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
    ("name", "variant", "parameters"),
    [
        ("rnn", "flow", 526_336),
        ("rnn", "recurrent, 1 layer, scalar", 263_168),
        ("rnn", "recurrent, 2 layers, scalar", 526_336),
        ("nmt", "flow, all blocks", 526_336),
    ],
)
def test_the_papers_sizes_build_without_memory(name: str, variant: str, parameters: int) -> None:
    config = trained(name).configs("paper")[variant]
    model = build_translator(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    sites, dim = 12, 512
    assert position_parameters(model) == parameters + sites * dim
    block = 4 * (dim * dim + dim) + 2 * dim * 2048 + 2048 + dim + 4 * dim
    base = 6 * (2 * block + 4 * (dim * dim + dim) + 2 * dim) + 32_000 * dim
    counted = sum(
        parameter.numel()
        for key, parameter in model.named_parameters()
        if "embed_positions" not in key
    )
    assert counted - position_parameters(model) == base


def test_relative_positions_of_the_papers_size_are_two_tables_per_self_attention() -> None:
    for name in ("nmt", "s2l"):
        model = build_translator(trained(name).configs("paper")["relative"])
        assert position_parameters(model) == 12 * 2 * (2 * 16 + 1) * 64 == 50_688
    (table,) = (
        trained("nmt")
        .check(ReproductionRequest("paper", Path("unused"), [0], 1, QUIET, ["relative"]))
        .tables
    )
    assert table.rows[0][3:5] == [50_688, 50_688]


TABLE_2 = (
    "sinusoidal",
    "sinusoidal-blocks",
    "learned",
    "learned-blocks",
    "flow",
    "flow-blocks",
    "flow-qkv",
)
TABLE_6 = tuple(
    f"recurrent-{layers}-{input}" for input in ("scalar", "vector") for layers in (1, 2)
)
OTHERS = ("relative", "rotary", "rotary-flow")
FIGURE_3 = (
    *("sinusoidal", "learned", "recurrent", "relative", "rotary", "rotary-flow"),
    *("flow-blocks", "flow-qkv-scratch"),
    *("sinusoidal-stretch", "rotary-stretch", "rotary-flow-stretch"),
    *("rotary-flow-half", "flow-stretch", "rotating-stretch", "rotating-half"),
)
TRICKS = ("kept", "seldom", "tricks", "small-weights", "frozen", "rk4", "rk4-tricks")
VARIANTS: dict[tuple[str, Scale], tuple[str, ...]] = {
    ("nmt", "smoke"): (*TABLE_2, *OTHERS, "sinusoidal-more"),
    ("nmt", "small"): (*TABLE_2, *OTHERS, "sinusoidal-more"),
    ("nmt", "paper"): (*TABLE_2, *OTHERS),
    **{("rnn", scale): ("flow-blocks", *TABLE_6) for scale in SCALES},
    **{("s2l", scale): FIGURE_3 for scale in SCALES},
    **{
        ("lengths", scale): tuple(
            key
            for key in FIGURE_3
            if key not in ("flow-blocks", "rotary-flow-half", "rotating-half")
        )
        for scale in SCALES
    },
    **{
        ("heatmaps", scale): ("sinusoidal", "learned", "flow-blocks", "recurrent-1-scalar")
        for scale in SCALES
    },
    **{("efficiency", scale): ("sinusoidal", "flow-blocks", *TRICKS) for scale in SCALES},
}
"""The variants that have a config, by item and scale, so that a missing or new file fails here."""
SIZES = {"smoke": (32, 1), "small": (128, 4), "paper": (512, 6)}
"""Dimensions and layers of the translators."""
UPDATES = {"smoke": 30, "small": 2000, "paper": 100_000}


def test_every_item_is_accounted_for() -> None:
    trained = {name for name, item in ITEMS.items() if isinstance(item, TrainingItem)}
    assert {name for name, _ in VARIANTS} == trained
    assert {name for name, item in ITEMS.items() if isinstance(item, Comparisons)} == {
        "glue",
        "race",
        "squad",
    }
    others = {"capabilities", "glue", "race", "squad", "series", "events", "documents", "masked"}
    assert set(ITEMS) - trained == others
    help_text = get_type_hints(cli.reproduce, include_extras=True)["item"].__metadata__[0].help
    assert set(re.findall(r"\w+", help_text)) - {"or"} == set(ITEMS)


@pytest.mark.parametrize(("name", "scale"), VARIANTS)
def test_configs_of_every_scale_resolve(name: str, scale: Scale) -> None:
    item = trained(name)
    request = ReproductionRequest(scale, Path("unused"), [0], 1, QUIET)
    variants = item.chosen(request)
    assert sorted(variant.key for variant in variants) == sorted(VARIANTS[name, scale])
    found = item.configs(scale, request)
    assert list(found) == [variant.name for variant in variants]
    updates = 800 if (name, scale) == ("efficiency", "small") else UPDATES[scale]
    dim_and_layers = (128, 3) if (name, scale) == ("s2l", "small") else SIZES[scale]
    if name == "lengths" and scale != "smoke":
        updates, dim_and_layers = 1500, (64, 2)
    for variant in variants:
        config = found[variant.name]
        size = config.model.size()
        assert (size["dim"], size["layers"]) == dim_and_layers, variant.key
        assert config.training.updates == (
            50_000 if (variant.key, scale) == ("flow-qkv", "paper") else updates
        ), variant.key
        assert (
            any(name in variant.key for name in ("flow", "rotating")) or variant.key in TRICKS
        ) == isinstance(config.positions.encoder, FlowConfig), variant.key
        assert variant.key.startswith("recurrent") == isinstance(
            config.positions.encoder, RecurrentConfig
        ), variant.key
        assert variant.key.startswith("learned") == isinstance(
            config.positions.encoder, LearnedConfig
        ), variant.key
        assert (variant.key == "relative") == isinstance(
            config.positions.encoder, RelativeConfig
        ), variant.key


@pytest.mark.parametrize(("name", "scale"), [key for key in VARIANTS if key[1] != "smoke"])
def test_check_shows_a_row_per_variant(name: str, scale: Scale) -> None:
    item = trained(name)
    (table,) = item.check(ReproductionRequest(scale, Path("unused"), [0], 1, QUIET)).tables
    names = {variant.key: variant.name for variant in item.variants}
    assert sorted(str(row[0]) for row in table.rows) == sorted(
        names[key] for key in VARIANTS[name, scale]
    )
    smallest = 200_000 if name == "lengths" else 1_000_000
    assert all(isinstance(row[2], int) and row[2] > smallest for row in table.rows)
    assert ("left out" in table.note) == (len(item.variants) > len(VARIANTS[name, scale]))


GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")
COMPARED = {
    ("glue", "small"): dict.fromkeys(GLUE, (3, 16)),
    ("glue", "paper"): {
        key: (10, 32 if key in ("sst2", "qqp", "mnli", "qnli") else 16) for key in GLUE
    },
    ("race", "small"): {"small": (2, 8)},
    ("race", "paper"): {"roberta-base": (4, 16)},
    ("squad", "small"): {"small": (2, 16), "small-v2": (2, 16)},
    ("squad", "paper"): {"roberta-base": (2, 48)},
}
"""Epochs and batch of each comparison."""


@pytest.mark.parametrize(("name", "scale"), COMPARED)
def test_comparisons_of_every_scale_resolve(name: str, scale: Scale) -> None:
    item = ITEMS[name]
    assert isinstance(item, Comparisons)
    request = ReproductionRequest(scale, Path("unused"), [0, 7], 1, QUIET)
    jobs = item.jobs(request)
    trainings = {job.path.name: job.task.config.training for job in jobs}
    assert {key: (found.epochs, found.batch) for key, found in trainings.items()} == COMPARED[
        name, scale
    ]
    assert all(job.task.config.compare.seeds == (0, 7) for job in jobs)
    (table,) = item.check(request).tables
    assert [row[0] for row in table.rows] == [job.label for job in jobs]


def broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, find: str, change: str
) -> None:
    """A copy of all configs with one of them changed, in a folder that is looked at first."""
    copied = tmp_path / "configs"
    shutil.copytree(Path(__file__).parents[2] / "configs", copied)
    text = (copied / name).read_text(encoding="utf-8")
    assert find in text
    (copied / name).write_text(text.replace(find, change, 1), encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("check_only", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("positoins:", "has no key `positoins`"),
        ("positions: [", "not valid YAML"),
        ("model: {dim: 7}\npositions:", "`dim` must be even"),
    ],
)
def test_a_typo_in_the_config_of_a_variant_is_an_error_not_a_missing_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_only: bool, change: str, message: str
) -> None:
    broken(tmp_path, monkeypatch, "translation/s2l/flow-blocks.yaml", "positions:", change)
    with pytest.raises(FloaterError, match=rf"s2l/flow-blocks.yaml.*{message}"):
        reproduce(
            "s2l",
            "small",
            tmp_path / "out",
            seeds=[0],
            workers=1,
            console=QUIET,
            check_only=check_only,
        )
    assert not (tmp_path / "out").exists()


def test_variants_of_an_item_with_one_config_are_its_own_alone() -> None:
    for scale in SCALES:
        with pytest.raises(ArgumentError, match="must be among sinusoidal, flow-blocks, kept"):
            trained("efficiency").chosen(
                ReproductionRequest(scale, Path("unused"), [0], 1, QUIET, ["sinusoidl"])
            )


def test_what_cannot_be_reproduced_is_said_in_one_line(tmp_path: Path) -> None:
    def ask(name: str, scale: str, *keys: str) -> str:
        with pytest.raises(FloaterError) as raised:
            reproduce(name, scale, tmp_path, seeds=[0], workers=1, console=QUIET, keys=keys)
        return str(raised.value)

    assert ask("table9", "smoke").startswith(
        "The item must be one of capabilities, nmt, glue, race, squad, s2l"
    )
    assert ask("s2l", "huge") == "`--scale` must be one of smoke, small, paper, but is 'huge'."
    assert "this machine has none; `floater reproduce s2l --scale paper --check`" in ask(
        "s2l", "paper"
    )
    assert "must include sinusoidal too" in ask("nmt", "smoke", "flow-qkv")
    assert "must be among sinusoidal" in ask("s2l", "smoke", "nonsense")
    result = CliRunner().invoke(cli.app, ["reproduce", "s2l", "--seeds", "0,x"])
    assert isinstance(result.exception, ArgumentError)
    assert "`--seeds` must be integers separated by commas" in str(result.exception)
    result = CliRunner().invoke(cli.app, ["reproduce", "s2l", "--seeds", "1,1"])
    assert "must differ from each other" in str(result.exception)
    result = CliRunner().invoke(cli.app, ["reproduce", "s2l", "--variants", "rotary,rotary"])
    assert "`--variants` must differ from each other, but are rotary,rotary" in str(
        result.exception
    )
    result = CliRunner().invoke(cli.app, ["reproduce", "s2l", "--seeds", "0,-1"])
    assert "`--seeds` must not be negative, but are 0,-1" in str(result.exception)


def test_variants_may_be_any_config_of_the_item() -> None:
    item = trained("s2l")
    request = ReproductionRequest(
        "small", Path("unused"), [0], 1, QUIET, ["sinusoidal", "flow-blocks-horizon"]
    )
    found = item.configs("small", request)
    assert list(found) == ["sinusoidal", "flow-blocks-horizon"]
    assert found["sinusoidal"].data.max_source_tokens == 47
    shorter = ReproductionRequest(
        "small", Path("unused"), [0], 1, QUIET, ["sinusoidal"], ["training.updates=7"]
    )
    for name in ("s2l", "efficiency"):
        assert trained(name).configs("small", shorter)["sinusoidal"].training.updates == 7
    for name in ("nmt", "s2l", "rnn", "heatmaps", "efficiency"):  # an hour on two cores
        asked = ReproductionRequest("small", Path("unused"), [0], 1, QUIET)
        assert all(
            config.training.updates <= 2000
            for config in trained(name).configs("small", asked).values()
        ), name
    with pytest.raises(FloaterError, match=r"configs/translation/none\.yaml must be a config file"):
        Sources("translation/{key}.yaml", "").settings(Variant("none", "none"), "small")
