"""Files of the present version and of version 1 are read and shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from floater.errors import RunError
from floater.report.load import gather
from floater.report.page import write_report
from floater.runs.comparison import COMPARISON, Comparison
from floater.runs.scores import SCORES, Scores

from .folders import make_run, typed_comparison, typed_scores
from .test_page import Elements, data_of

FIRST = Path(__file__).parent.parent / "fixtures" / "version1"


def write_second_version(folder: Path) -> Path:
    for name, other in (("flow", "own"), ("own", "none")):
        run = make_run(folder / name, {})
        scores = typed_scores(other)
        (scores if name == "flow" else Scores(sets=scores.sets)).write(run / SCORES)
    typed_comparison().write(folder / COMPARISON)
    return folder


def test_scores_of_the_present_version_are_read_as_written(tmp_path: Path) -> None:
    material = gather([write_second_version(tmp_path / "squad")])
    flow, own = material.runs
    assert flow.scores == typed_scores("own")
    assert not own.scores.paired
    assert material.comparisons == [(tmp_path / "squad", typed_comparison())]
    assert json.loads((flow.path / SCORES).read_text())["version"] == 2


def test_scores_of_the_present_version_are_shown(tmp_path: Path) -> None:
    write_report([write_second_version(tmp_path / "squad")], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = Elements(page).text
    for expected in (
        *("On test (1,000 sentences), flow reaches 35.25 ± 1.50 BLEU", "61.50 ± 0.75"),
        *("nc:6|bs:1000", "+1.00 to +1.50", "-2.50", "-2.75 to -2.25", "chrf|bs:1000"),
        "flow is better than own by a paired test: +1.25 BLEU (95 % +1.00 to +1.50, p = 0.004).",
        *("squad: variants against base, medians over seeds", "+1.75", "-4.00 to -3.00", "1,234"),
    ):
        assert expected in text, expected
    assert all(f">{column}</th>" in page for column in ("sentences", "beam", "seconds", "variant"))
    charts = data_of(page)["charts"]
    assert [panel["label"] for panel in charts[0]["panels"]] == ["BLEU on test", "chrF on test"]
    (by_length,) = charts[1]["panels"]
    assert by_length["names"] == ["0-19", "20-39", "40-"]
    for line in by_length["series"]:
        assert (line["y"], line["low"], line["high"]) == (
            [36.0, 33.0, None],
            [34.5, 30.5, None],
            [37.5, 35.5, None],
        )


def test_a_comparison_without_rows_is_noted(tmp_path: Path) -> None:
    folder = write_second_version(tmp_path / "squad")
    Comparison(task="squad").write(folder / COMPARISON)
    material = gather([folder])
    assert not material.comparisons
    assert f"{folder / COMPARISON} holds no rows, so there is nothing to compare." in material.notes


@pytest.mark.parametrize("name", [SCORES, COMPARISON])
def test_files_of_a_later_version_are_refused(tmp_path: Path, name: str) -> None:
    folder = write_second_version(tmp_path / "squad")
    path = folder / name if name == COMPARISON else folder / "flow" / name
    path.write_text(json.dumps({"version": 3}))
    with pytest.raises(RunError, match=rf"{name} must have a version up to 2, but has 3"):
        gather([folder])


def test_a_changed_score_is_noticed(tmp_path: Path) -> None:
    folder = write_second_version(tmp_path / "squad")
    path = folder / "flow" / SCORES
    path.write_text(path.read_text().replace("35.25", "95.25"))
    with pytest.raises(RunError, match=r"scores\.json is damaged or was changed"):
        gather([folder])


def test_folders_of_version_1_are_shown(tmp_path: Path) -> None:
    material = write_report([FIRST], tmp_path / "page.html")
    assert [run.name for run in material.runs] == ["base-0", "floater-0", "flow", "sinusoidal"]
    assert [path.name for path, _ in material.comparisons] == ["compare-rte"]
    assert [path.name for path, _ in material.reproductions] == ["capabilities"]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = Elements(page).text
    for expected in (
        "On test (10 sentences), flow reaches 0.45 ± 0.44 BLEU and sinusoidal 0.00 ± 0.00.",
        "A paired test does not distinguish flow from sinusoidal: +0.45 BLEU (95 % +0.00 to +0.88, "
        "p = 0.034).",
        *("2.44 ± 1.93", "nrefs:1|case:mixed|eff:yes|nc:6", "tok:13a|smooth:exp|version:2.6.0"),
        "On valid (20 examples), base-0 reaches 50.00 ± 22.50 accuracy",
        "base-0 has the same score as floater-0.",
        *("compare-rte: variants against base, medians over seeds", "+0.00 to +0.00"),
        *("What each encoding can do (Table 1), scale smoke", "FLOATER (flow)", "8,832"),
    ):
        assert expected in text, expected
    assert '<td class="short">floater</td>' in page, "the variant of the comparison"


def test_scores_of_version_1_are_all_read() -> None:
    flow, sinusoidal = gather([FIRST / "flow", FIRST / "sinusoidal"]).runs
    test = flow.scores.sets["test"]
    assert {name: round(score.score, 4) for name, score in test.scores.items()} == {
        "bleu": 0.4513,
        "chrf": 2.4428,
        "exact": 0.0,
    }
    assert (test.examples, test.settings["beam"], test.seconds) == (10, 1, 176.4)
    (paired,) = flow.scores.paired
    assert (paired.test_set, paired.against, paired.measure) == ("test", "sinusoidal", "bleu")
    assert paired.difference == pytest.approx(0.4513, abs=1e-4)
    assert test.comparable(sinusoidal.scores.sets["test"], "bleu")
