"""`floater reproduce documents`."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from documents.files import write_encoder, write_files
from floater.experiments.base import ReproductionRequest
from floater.experiments.documents import DocumentsTable
from floater.experiments.reproduce import ITEMS, reproduce
from floater.runs.results import Results

QUIET = Console(quiet=True)
FEW = (
    "training.updates=3",
    "training.evaluate_every=3",
    "training.save_every=3",
    "compare.draws=20",
)


@pytest.mark.slow
def test_a_table_has_every_asked_variant_paired_tests_and_figures(tmp_path: Path) -> None:
    keys, names = ("sinusoidal", "flow-lengths"), DocumentsTable.names
    overrides = (*FEW, "data.synthetic.documents=60")
    found = reproduce(
        "documents",
        "smoke",
        tmp_path,
        seeds=[0],
        workers=1,
        console=QUIET,
        keys=keys,
        overrides=overrides,
    )
    assert found is not None
    assert Results.read(tmp_path / "documents-smoke") == found
    assert [row[0] for row in found.tables[0].rows] == [names[key] for key in keys]
    assert [row[0] for row in found.tables[1].rows] == [names["flow-lengths"]]
    attention, path = found.figures
    assert [line.name for line in attention.series] == [names[key] for key in keys]
    assert [line.name for line in path.series] == [names["flow-lengths"]]
    assert (tmp_path / "documents-smoke" / "report.html").stat().st_size > 10_000


@pytest.mark.torture
def test_only_lengths_tell_all_generated_documents_apart(tmp_path: Path) -> None:
    keys = ("flow-lengths", "flow-index")
    found = reproduce(
        "documents", "smoke", tmp_path, seeds=[0], workers=1, console=QUIET, keys=keys
    )
    assert found is not None
    lengths, index = (row[1].mean for row in found.tables[0].rows)  # type: ignore[union-attr]
    assert lengths >= 95
    assert index < 62  # order alone tells two of the four classes from the others: 50


def test_runs_on_a_frozen_encoder_share_its_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = write_files(tmp_path)
    settings["sentences"] = {
        "kind": "pretrained",
        "name": str(write_encoder(tmp_path / "bert")),
        "max_words": 20,
    }
    monkeypatch.setattr(DocumentsTable, "base_settings", lambda self, scale: settings)
    request = ReproductionRequest(
        "small", tmp_path / "out", (0,), 1, QUIET, ("sinusoidal", "none"), FEW
    )
    item = DocumentsTable()
    runs = item.runs(request, item.settings(request))
    assert len(list((tmp_path / "out" / "vectors").iterdir())) == 1
    assert all(run.scores().sets["test"].examples == 10 for (run,) in runs.values())


def test_every_variant_is_valid_at_both_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATER_DATA", "data")
    assert DocumentsTable.positions.keys() == DocumentsTable.names.keys()
    for scale in ("smoke", "small"):
        request = ReproductionRequest(scale, tmp_path, (0,), 1, QUIET, ())
        checked = ITEMS["documents"].check(request)
        assert checked is not None
        assert len(checked.tables[0].rows) == len(DocumentsTable.positions)
