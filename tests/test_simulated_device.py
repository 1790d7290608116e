"""On a simulated accelerator: the same numbers as on the CPU, few launches, and a single wait.

A process that has registered the device offers it to every library, so another one counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
COMPARE = """
import copy, json, sys
import torch
import floater
from simulated_device import Count, OnDevice, content, move, use

torch.set_num_threads(1)
use()
torch.manual_seed(0)
config = floater.FlowConfig(pace="free", zero_init=False, initial_scale=0.3)
flow = config.build(5, 24)
cpu = copy.deepcopy(flow)
move(flow)
cotangent = torch.randn(200, 5, 24)
worst = {}
for update in range(3):
    expected = cpu.table(200)
    (expected * cotangent).sum().backward()
    with Count():
        found = flow.table(200)
        loss = (found * OnDevice(cotangent)).sum()
        loss.backward()
    pairs = [(content(found), expected)]
    pairs += [(content(ours.grad), theirs.grad) for ours, theirs in
              zip(flow.parameters(), cpu.parameters(), strict=True)]
    worst[update] = max(
        ((ours - theirs).abs().max() / theirs.abs().max()).item() for ours, theirs in pairs
    )
    with Count(), torch.no_grad():
        for parameter in (*flow.parameters(), *cpu.parameters()):
            parameter.mul_(1.0001)
            parameter.grad = None
print(json.dumps({"worst": worst, "solves": flow.solves}))
"""


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("launches") / "launches.json"
    script = ROOT / "benchmarks" / "launches.py"
    sizes = ("--positions=64", "--sites=6", "--width=32")
    subprocess.run([sys.executable, script, *sizes, f"--out={out}"], check=True, cwd=ROOT)
    return json.loads(out.read_text(encoding="utf-8"))["counts"]


def test_a_solve_waits_once(counts: Any) -> None:
    assert counts["later solves"]["waits"] == 1
    assert counts["reverse sweep"]["waits"] == 0
    assert counts["another call, same weights"]["waits"] == 0


def test_the_first_solve_waits_once_per_step(counts: Any) -> None:
    steps = counts["later solves"]["steps"]
    assert counts["first solve"]["waits"] <= steps + 3


def test_launches_of_a_solve_and_a_sweep(counts: Any) -> None:
    """Three per stage, and a fixed number per step and per solve."""
    solve, sweep = counts["later solves"], counts["reverse sweep"]
    assert solve["launches"] <= 3 * solve["evaluations"] + 35 * solve["steps"] + 40
    assert sweep["launches"] <= 3 * sweep["evaluations"] + 10 * sweep["steps"] + 60
    assert counts["another call, same weights"]["launches"] <= 20


def test_a_training_step_of_a_model_waits_once_more_than_without_a_flow(counts: Any) -> None:
    untouched = counts["training step, untouched"]["waits"]
    assert counts["training step, flow"]["waits"] == untouched + 1
    assert counts["training step, flow, stretched times"]["waits"] <= untouched + 3


def test_the_numbers_are_those_of_the_cpu() -> None:
    run = subprocess.run(
        [sys.executable, "-c", COMPARE],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT / "benchmarks",
    )
    found = json.loads(run.stdout)
    assert found["solves"] == 3
    first, *planned = found["worst"].values()
    assert first < 1e-4
    assert max(planned) < 1e-2  # other steps, within the same tolerance
