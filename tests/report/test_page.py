"""The page shows what the folders hold, loads nothing, and runs nothing that it shows."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from floater.errors import FloaterError, RunError
from floater.report.load import gather
from floater.report.page import write_report
from floater.runs.encodings import ENCODINGS, Encodings

from .folders import circle, make_reproduction, make_run, sample, scored


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(tmp_path: Path, *paths: Path) -> str:
    write_report(paths, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    script = re.search(
        r'<script type="application/json" id="report-data">(.*?)</script>', page, re.DOTALL
    )
    assert script is not None
    data: dict[str, Any] = json.loads(script[1])
    return data


def test_everything_is_there(tmp_path: Path) -> None:
    page = page_of(tmp_path, *sample(tmp_path))
    text = Elements(page).text
    for words in (
        *(
            "Short to long",
            "Flow holds at twice the length.",
            "27.31 ± 0.21 3 seeds",
            "28.6 paper",
            "Three seeds.",
        ),
        *(
            "35.20 ± 1.50",
            "tok:13a|bs:1000",
            "+0.40 to +2.00",
            "flow is better than own by a paired test",
        ),
        *(
            "1 h 5 min",
            "1,000",
            "floater train a.yaml",
            "2.13.0",
            "source_sha256",
            "positions.encoder.kind",
        ),
        *("Rotary encodings rotate queries and keys", "trained to 12"),
    ):
        assert words in text, words
    assert '<td class="number">17</td>' in page  # 16.8 seconds
    data = data_of(page)
    assert data["runs"] == ["flow", "own", "rotary"]
    assert [packed and packed["sites"] for packed in data["encodings"]] == [
        ["encoder block 1", "encoder block 2"],
        ["encoder block 1"],
        None,
    ]
    labels = [[panel["label"] for panel in chart["panels"]] for chart in data["charts"]]
    assert labels == [
        ["By length"],
        ["BLEU on test"],
        ["BLEU"],
        ["validation BLEU", "validation loss", "training loss", "speed", "learning rate"],
    ]
    assert data["charts"][2]["panels"][0]["series"][0]["y"] == [36.0, 33.0, None]
    assert data["charts"][2]["panels"][0]["series"][0]["low"] == [34.5, 30.5, None]


def test_nothing_is_loaded_and_only_our_script_runs(tmp_path: Path) -> None:
    page = page_of(tmp_path, *sample(tmp_path))
    elements = Elements(page).elements
    for tag, attributes in elements:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert not any(
            name in ("src", "style", "srcset") or name.startswith("on") for name in attributes
        ), (tag, attributes)
        assert attributes.get("href", "#").startswith("#")  # type: ignore[union-attr]
    policy = next(
        values["content"]
        for tag, values in elements
        if values.get("http-equiv") == "Content-Security-Policy"
    )
    script, style = (
        re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("script", "style")
    )
    assert script is not None
    assert style is not None
    for name, inner in (("script", script[1]), ("style", style[1])):
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none';")


def test_names_and_texts_cannot_be_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)<script>"
    run = make_run(
        tmp_path / evil, {f"{evil}&": {"bleu": {"score": 1.0, "interval": None, "signature": evil}}}
    )
    facts = json.loads((run / "run.json").read_text())
    facts |= {
        "commands": ["</script><script>alert(2)</script>"],
        "positions": '"><img src=x onerror=alert(3)>',
        "versions": {evil: evil},
    }
    (run / "run.json").write_text(json.dumps(facts))
    circle(1)._with(circle(1).times, circle(1).tables, (f"</select>{evil}",)).write(run)
    repro = make_reproduction(tmp_path / "repro", [])
    results = json.loads((repro / "results.json").read_text())
    results |= {"title": f"</title>{evil}", "summary": [evil]}
    results["tables"][0]["rows"][0][0] = results["figures"][0]["series"][0]["name"] = evil
    (repro / "results.json").write_text(json.dumps(results))
    page = page_of(tmp_path, run, repro)
    elements = Elements(page).elements
    assert sum(tag == "script" for tag, _ in elements) == 2
    assert not any(tag == "img" for tag, _ in elements)
    assert "<script>alert" not in page
    assert data_of(page)["runs"] == [evil]
    assert html.escape(evil) in page


def test_it_is_written_without_torch(tmp_path: Path) -> None:
    paths = sample(tmp_path)
    code = (
        "import sys\nfor name in ('torch', 'transformers', 'accelerate', 'datasets'): "
        "sys.modules[name] = None\nfrom floater.cli import main\nsys.argv = ['floater', 'report', "
        f"*{[str(path) for path in paths]!r}, '--out', {str(tmp_path / 'r.html')!r}]\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "3 runs" in done.stdout
    assert "rotary: Rotary encodings rotate queries and keys" in done.stderr
    assert (tmp_path / "r.html").stat().st_size > 10_000


@pytest.mark.slow
def test_eight_large_runs_stay_under_three_megabytes(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=(36, 256, 128)).astype(np.float32).cumsum(1)
    encodings = Encodings(
        np.arange(256) * 0.1,
        noise,
        tuple(f"site {i}" for i in range(36)),
        "flow",
        "flow at qkv",
        128,
    )
    for number in range(8):
        make_run(tmp_path / "runs" / f"run-{number}", encodings=encodings)
    assert len(page_of(tmp_path, tmp_path / "runs")) < 3_000_000


def test_runs_are_read_once_and_have_unique_names(tmp_path: Path) -> None:
    for name in ("a/run", "b/run", "b/other"):
        make_run(tmp_path / name)
    make_reproduction(tmp_path / "repro", ["../a/run", "../a/none"])
    material = gather(
        [
            tmp_path / "b",
            tmp_path / "a" / "run",
            tmp_path / "repro",
            tmp_path / "a" / ".." / "a" / "run",
        ]
    )
    assert [run.name for run in material.runs] == ["other", "b/run", "a/run"]
    assert len(material.reproductions) == 1
    assert any(
        "repro names the run" in note and "but there is none" in note for note in material.notes
    )


def test_a_run_without_encodings_names_the_command_that_computes_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", encoder={"kind": "flow"})
    assert f"`floater plot {run}` computes and stores them" in page_of(tmp_path, run)


def test_a_killed_run_leaves_its_curves(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"test": {"chrf": "much"}, "odd": 3})
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 210, "loss": NaN, "eval_bleu": 30.0}\n{"step": 220, "lo')
    (run / "run.json").write_text("{}")
    (loaded,) = gather([run]).runs
    assert loaded.curves["loss"][-1][0] == 200
    assert list(loaded.curves["eval_bleu"][-1]) == [210, 30.0]
    assert not loaded.scores.sets["test"].scores
    page_of(tmp_path, run)


def test_a_score_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"test": {"bleu": {"score": float("nan")}}})
    with pytest.raises(RunError, match=r"scores\.json is damaged: `score` of Score: .* is nan"):
        gather([run])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("run.json", "{", r"run\.json is damaged"),
        ("scores.json", "\udcff", r"scores\.json is damaged"),
        ("metrics.jsonl", "nonsense}\n", r"metrics\.jsonl, line 1: damaged"),
        ("config.yaml", "a: [", r"not valid YAML"),
        (
            ENCODINGS,
            "nonsense",
            r"positions\.safetensors is damaged: .*`floater plot .*` creates it again",
        ),
    ],
)
def test_damaged_files_are_one_line(file: str, content: str, message: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(FloaterError, match=message) as caught:
        page_of(tmp_path, run)
    assert "\n" not in str(caught.value)


def test_encodings_of_the_wrong_shape_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    good = circle(2)
    good._with(good.times[:5], good.tables, good.sites).write(run)
    with pytest.raises(
        RunError,
        match=(
            r"must hold finite times and encodings \[2 sites, 5 times, dim\], but holds \[2,"
            r" 24, 6\]"
        ),
    ):
        gather([run])


@pytest.mark.parametrize(
    ("name", "message"), [("none", "but does not exist"), ("empty", "but is neither")]
)
def test_other_folders_are_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        RunError, match=rf"must be the folder of a run .* or of a reproduction .*, {message}"
    ):
        gather([tmp_path / name])


def test_runs_are_found_in_folders_of_folders(tmp_path: Path) -> None:
    """As `floater compare` arranges them; a run inside a run, such as a fitted head, belongs to
    it.
    """
    make_run(tmp_path / "runs" / "single")
    for variant in ("base-0", "floater-0"):
        make_run(tmp_path / "runs" / "glue" / "rte" / variant)
    make_run(tmp_path / "runs" / "single" / "head")
    material = gather([tmp_path / "runs"])
    assert {run.name for run in material.runs} == {"base-0", "floater-0", "single"}


def test_empty_columns_are_left_out(tmp_path: Path) -> None:
    """Understanding has no beams."""
    with_beam = page_of(tmp_path, make_run(tmp_path / "a", {"test": {**scored(30.0), "beam": 4}}))
    without = page_of(
        tmp_path,
        make_run(
            tmp_path / "b",
            {"test": {key: value for key, value in scored(30.0).items() if key != "beam"}},
        ),
    )
    assert ">beam</th>" in with_beam
    assert ">beam</th>" not in without


def test_a_pretrained_model_alone_has_no_encodings_to_compute(tmp_path: Path) -> None:
    run = make_run(tmp_path / "base-0")
    (run / ENCODINGS).unlink(missing_ok=True)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(
        yaml.safe_dump({**settings, "task": "glue", "positions": {"encoder": None}})
    )
    (note,) = gather([run]).notes
    assert "only the built-in positions" in note
    assert "floater plot" not in note


def test_the_title_tells_runs_of_a_reproduction_from_other_runs(tmp_path: Path) -> None:
    """A page of one reproduction has its title; other runs beside it are named in it."""
    for name in ("flow", "stranger"):
        make_run(tmp_path / name)
    reproduction = make_reproduction(tmp_path / "s2l", ["../flow"])
    assert "<title>Short to long</title>" in page_of(tmp_path, reproduction)
    assert "<title>Short to long, and other runs</title>" in page_of(
        tmp_path, reproduction, tmp_path / "stranger"
    )
