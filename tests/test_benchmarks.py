"""The benchmarks run at small sizes and write what the performance page is made from."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import extended
import inference
import irregular
import methods
import performance
import scaling
import training
from step_models import shape_of
from tiny_tokenizers import tiny
from training_step import TrainingStep, variant

ROOT = Path(__file__).parents[1]
MARIAN = ("--layers=1", "--width=32", "--vocabulary=40", "--tokens=48", "--length=8")
BERT = ("--layers=1", "--width=48", "--vocabulary=40", "--tokens=32", "--length=8")
LLAMA = ("--layers=1", "--width=36", "--vocabulary=40", "--tokens=32", "--length=8")
Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    """Restore what a benchmark sets for its process."""
    threads, state = torch.get_num_threads(), random.getstate()
    yield
    torch.set_num_threads(threads)
    random.setstate(state)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a benchmark with a single thread and return its JSON."""

    def call(script: Any, *arguments: str) -> Any:
        out = tmp_path / "out.json"
        assert script.main([*arguments, "--threads=1", f"--out={out}"]) == 0
        return json.loads(out.read_text(encoding="utf-8"))

    return call


def check_variant(found: dict[str, Any], rounds: int) -> None:
    assert found["rounds"] == len(found["times"]) == len(found["base_times"]) == rounds
    assert found["seconds"] > 0
    middle, low, high = found["overhead"]
    assert low <= middle <= high


def test_training_measures_every_variant(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(training, "--model=tiny", *MARIAN, "--pairs=2", "--paper-rounds=2")
    assert set(result["variants"]) == {
        name for name in training.NAMES if not name.startswith("x-transformers")
    }
    for found in result["variants"].values():
        check_variant(found, 2)
    flows = {name: result["variants"][name] for name in ("flow", "flow-jitter", "rotary-flow")}
    assert all(found["evaluations"] > 0 for found in flows.values())
    assert all(found["solver_share"] > 0 for found in flows.values())
    assert result["variants"]["flow-frozen"]["evaluations"] == 0
    assert result["variants"]["paper"]["evaluations"] % 20 == 0
    assert "evaluations" not in result["variants"]["sinusoidal"]
    assert result["machine"]["threads"] == 1
    assert result["shape"]["width"] == 32
    assert "flow-jitter" in capsys.readouterr().out


@pytest.mark.parametrize(("model", "sizes"), [("bert-base", BERT), ("llama", LLAMA)])
def test_training_accumulates(run: Run, model: str, sizes: tuple[str, ...]) -> None:
    result = run(
        training, f"--model={model}", *sizes, "--pairs=2", "--accumulate=2", "--variants=flow"
    )
    assert list(result["variants"]) == ["untouched", "untouched-again", "flow"]
    check_variant(result["variants"]["flow"], 2)


def test_too_many_variants_are_measured_in_groups(run: Run) -> None:
    few = "--variants=flow,learned"
    result = run(training, "--model=tiny", *MARIAN, "--pairs=2", few, "--gigabytes=3")
    assert result["variants"]["untouched"]["rounds"] == 4
    check_variant(result["variants"]["learned"], 2)


def test_the_paper_and_the_flow_give_the_same_encodings() -> None:
    arguments = training.parse(["--model=tiny", *MARIAN])
    shape = shape_of(arguments)
    flow, paper = (TrainingStep(variant(name, shape)) for name in ("flow", "paper"))
    torch.testing.assert_close(flow.flows[0].table(8), paper.flows[0].table(8), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_memory_is_measured_in_processes_of_their_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", path)
    result = run(training, "--model=tiny", *MARIAN, "--memory", "--variants=untouched")
    assert list(result["variants"]) == ["untouched", "untouched-again"]
    again = result["variants"]["untouched-again"]
    assert abs(again["extra_in_use"]) < 0.1
    assert again["in_use"] > 10**8
    assert again["default"] > 10**8


def test_inference_measures_forward_and_generate(run: Run) -> None:
    result = run(inference, "--model=llama", *LLAMA, "--pairs=2", "--prompt=4", "--new=3")
    assert list(result["tasks"]) == ["forward", "generate"]
    for variants in result["tasks"].values():
        assert list(variants) == ["plain", "attached", "baked", "plain-again"]
        for found in variants.values():
            check_variant(found, 2)
    assert list(run(inference, "--model=bert-base", *BERT, "--pairs=2")["tasks"]) == ["forward"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_an_extended_model_is_timed_where_it_could_read_before(
    kind: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    sizes: dict[str, Any] = {
        **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"vocab_size": 200, "intermediate_size": 32, "max_position_embeddings": 16},
    }
    bert = kind == "bert"
    model = BertModel(BertConfig(**sizes)) if bert else LlamaForCausalLM(LlamaConfig(**sizes))
    folder = tmp_path / kind
    model.save_pretrained(folder)
    tiny("bert").save_pretrained(folder)
    result = run(extended, f"--model={folder}", "--length=32", "--pairs=2", "--new=3")
    assert result["rotary"] == (kind == "llama")
    assert result["tokens"] == result["positions"] == 16
    tasks = ["forward"] if kind == "bert" else ["forward", "generate"]
    assert list(result["tasks"]) == tasks
    for variants in result["tasks"].values():
        assert list(variants) == ["plain", "extended", "ready", "plain-again"]
        for found in variants.values():
            check_variant(found, 2)
    assert all(cost["peak_bytes"] > 10**8 for cost in result["extending"].values())
    assert "| floater extend |" in performance.extended(result)


def test_scaling_varies_one_factor_at_a_time(run: Run) -> None:
    result = run(scaling, "--repeats=2", "--largest=64", "--no-kernel")
    assert list(result["rows"]) == ["kernel", "tensors"]
    for rows in result["rows"].values():
        assert {row["sites"] for row in rows} == {6, 18, 36}
        assert len({row["rtol"] for row in rows}) == 5
        assert all(row["evaluations"] > 0 and len(row["times"]) == 2 for row in rows)
    assert set(result["exponents"]["kernel"]) == {"sites", "rtol"}
    assert "FLOATER_KERNEL" not in os.environ


def test_exponents_are_those_of_a_power_law() -> None:
    values = [1, 2, 4, 8]
    assert scaling.fit(values, [3 * value**1.5 for value in values]) == pytest.approx((1.5, 0))
    slope, error = scaling.fit(values, [1, 2.2, 3.9, 8.3]) or (0, 0)
    assert abs(slope - 1) < 3 * error
    assert scaling.fit([1, 2], [1, 2]) is None


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (training, ("--model=tiny", "--pairs=0"), "--pairs: must be an integer ≥ 1, but is '0'"),
        (training, ("--model=tiny", "--variants=flwo"), "but has 'flwo'"),
        (training, ("--model=giant",), "invalid choice: 'giant'"),
        (training, (), "--model"),
        (inference, ("--model=tiny",), "invalid choice: 'tiny'"),
        (extended, ("--model=nowhere",), "must be a folder with a config.json, but nowhere is"),
        (inference, ("--model=llama", "--new=x"), "must be an integer ≥ 1, but is 'x'"),
        (scaling, ("--factors=depth",), "but has 'depth'"),
        (scaling, ("--repeats=-1",), "must be an integer ≥ 1, but is '-1'"),
    ],
)
def test_bad_options_end_in_one_line(
    script: Any, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        script.main(arguments)
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


# The page ----------------------------------------------------------------------------------------


def variant_record(overhead: float, **facts: float) -> dict[str, Any]:
    found = {"rounds": 40, "seconds": 2.5, "overhead": [overhead, overhead - 0.01, overhead + 0.01]}
    return {**found, "against": "untouched", **facts, "times": [1.0], "base_times": [2.0]}


def training_record() -> dict[str, Any]:
    machine = {"cpu": "A CPU", "threads": 2, "cores": 4, "load_average": 0.5, "kernel": True}
    flow = {"evaluations": 62, "solver_seconds": 0.03, "solver_share": 0.012}
    return {
        "benchmark": "training",
        "settings": {},
        "machine": {**machine, "torch": "2", "transformers": "5", "floater": "1"},
        "variants": {"untouched": variant_record(0.0), "flow": variant_record(0.0123, **flow)},
    }


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert "<!-- training-bert-base -->" in page
    found = performance.records(ROOT / "docs" / "records" / "performance")
    assert performance.filled(page, found) == page


def test_the_page_shows_records_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("docs/figures", "results"):
        (tmp_path / folder).mkdir(parents=True)
    text = json.dumps(training_record())
    (tmp_path / "results" / "training-tiny.json").write_text(text, encoding="utf-8")
    (tmp_path / "results" / "solver.json").write_text("{}", encoding="utf-8")
    names = ("overhead-figure", "training-tiny", "training-llama", "scaling", "cost-figure")
    page = tmp_path / "docs" / "performance.md"
    blank = "".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in names)
    page.write_text(blank, encoding="utf-8")
    monkeypatch.setattr(performance, "ROOT", tmp_path)
    performance.main(["--take", str(tmp_path / "results")])
    made = page.read_text(encoding="utf-8")
    assert "| flow | 40 | 2.50 s | +1.23 % | +0.23 to +2.23 | 62 | 30.0 ms | 1.20 % |" in made
    assert "A CPU, 2 threads on 4 cores" in made
    assert made.count("Not measured yet.") == 2
    assert "overhead.svg" in made
    assert "cost.svg" not in made
    assert [path.name for path in (tmp_path / "docs" / "figures").iterdir()] == ["overhead.svg"]
    kept = list((tmp_path / "docs" / "records" / "performance").iterdir())
    assert [path.name for path in kept] == ["training-tiny.json"]
    assert "times" not in kept[0].read_text(encoding="utf-8")
    performance.main(["--check"])
    page.write_text(blank, encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        performance.main(["--check"])
    assert stop.value.code == 1
    assert "run python tools/performance.py" in capsys.readouterr().err


def test_every_record_has_a_table(run: Run, tmp_path: Path) -> None:
    found = {
        "scaling": run(scaling, "--repeats=2", "--largest=64", "--factors=length,rtol"),
        "inference-bert-base": run(inference, "--model=bert-base", *BERT, "--pairs=2"),
    }
    page = "".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in (*found, "cost-figure"))
    made = performance.filled(page, found)
    assert "| forward | baked | 2 |" in made
    assert "| kernel | rtol |" in made
    performance.draw(found, tmp_path)
    assert (tmp_path / "cost.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_series_compares_flows_with_sinusoids(run: Run) -> None:
    sizes = ("--layers=1", "--width=16", "--rows=4", "--observations=6", "--pairs=2")
    result = run(irregular, *sizes)
    assert list(result["variants"])[:3] == [
        "sinusoidal, input",
        "sinusoidal-again, input",
        "flow, input",
    ]
    assert len(result["variants"]) == 9
    for name, found in result["variants"].items():
        check_variant(found, 2)
        assert found["solves"] == (1 if name.startswith("flow") else 0)
    table = performance.irregular(result)
    assert table.count("| flow, ") == 3
    assert "| sinusoidal, " not in table


def test_methods_of_higher_order_need_fewer_evaluations_for_small_errors(run: Run) -> None:
    found = run(methods, "--positions=64", "--sites=2", "--width=16", "--threads=1")
    by_method: dict[str, dict[float, Any]] = {}
    for row in found["rows"]:
        by_method.setdefault(row["method"], {})[row["rtol"]] = row
    assert set(by_method) == {*methods.METHODS, methods.OURS}
    for rows in by_method.values():
        errors = [rows[rtol]["error"] for rtol in methods.TOLERANCES]
        assert errors[0] > errors[4]
        assert rows[1e-2]["count"] < rows[1e-6]["count"]
    assert by_method["RK23"][1e-6]["count"] > 2 * by_method["RK45"][1e-6]["count"]
    # the same method with another step control
    assert by_method[methods.OURS][1e-4]["count"] <= 1.3 * by_method["RK45"][1e-4]["count"]
    assert by_method[methods.OURS][1e-4]["error"] < 5e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--positions=1"], "--positions must be at least 2, but is 1"),
        (["--model=nowhere"], "nowhere must be a folder with a saved model"),
    ],
)
def test_methods_refuse_wrong_input_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        methods.main([*arguments, "--threads=1", f"--out={tmp_path / 'out.json'}"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("methods.py: ")
    assert message in said
    assert said.count("\n") == 1


def test_results_of_other_sizes_and_broken_ones_are_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = training_record()
    record["settings"]["layers"] = 1
    path = tmp_path / "training-tiny.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        performance.main(["--take", str(tmp_path)])
    assert stop.value.code == 2
    assert "must have the default for --layers, but has 1" in capsys.readouterr().err
    path.write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        performance.main(["--take", str(tmp_path)])
    assert stop.value.code == 2
    assert "training-tiny.json must be a JSON file" in capsys.readouterr().err


def test_a_result_that_could_not_be_written_stops_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        irregular.main([f"--out={tmp_path / 'file' / 'out.json'}"])
    assert stop.value.code == 2
    assert "--out must be a file that can be written" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        irregular.main(["--width=10", f"--out={tmp_path / 'out.json'}"])
    assert stop.value.code == 2
    assert "`dim` must be a multiple of `heads`" in capsys.readouterr().err
