"""What a flow asks of an accelerator: operations launched, and times the host waits for the device.

    python benchmarks/launches.py [--positions 256] [--sites 18] [--width 512]
        [--out benchmarks/results/launches.json]

No accelerator is needed: simulated_device.py computes on the CPU and counts. Nothing is timed.
Counted are the first solve of a flow, a solve after a small update of the weights, as in training,
its reverse sweep, and a second call with the same weights (the next micro-batch); then whole
training steps of a small masked LM, untouched, with a flow at q, k and v of every block, and with
stretched times. Counts of a model depend on its layers, those of the flow on the steps it takes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

import floater
from floater.encoders import Flow
from simulated_device import Count, OnDevice, move, use
from step_models import flow_config
from turns import begin, options, save, show

SIZES = {"threads": 1, "positions": 256, "sites": 18, "width": 512}
LAYERS, ROWS, LENGTH = 2, 4, 32  # of the masked LM
UPDATE = 1e-7  # relative change of the weights between two solves


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print and save."""
    parser = options("launches", __doc__, SIZES)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/launches.json"))
    parsed = parser.parse_args(arguments)
    begin(parsed.threads, parsed.out)
    use()
    counts = {**count_flow(parsed), **count_models()}
    show(
        "Launches and waits",
        ("what", "launches", "waits", "which"),
        [
            (name, f"{found['launches']:,}", str(found["waits"]), found["which"])
            for name, found in counts.items()
        ],
    )
    save(parsed, "launches", counts=counts)
    return 0


def count_flow(parsed: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Count for a flow alone."""
    flow = flow_config().build(parsed.sites, parsed.width)
    assert isinstance(flow, Flow)
    move(flow)
    cotangent = OnDevice(torch.randn(parsed.positions, parsed.sites, parsed.width))
    with Count() as first:
        flow.table(parsed.positions)
    update(flow)
    with Count() as steady:
        table = flow.table(parsed.positions)
    steps = {"steps": flow.steps, "evaluations": flow.evaluations}
    with Count() as reused:
        flow.table(parsed.positions)
    with Count():
        loss = (table * cotangent).sum()
    with Count() as reverse:
        loss.backward()
    return {
        "first solve": described([first]),
        "later solves": described([steady]) | steps,
        "reverse sweep": described([reverse]) | steps,
        "another call, same weights": described([reused]),
    }


def count_models() -> dict[str, dict[str, Any]]:
    """Count training steps of a small masked LM."""
    stretched = floater.TimeJitter(stretch=4)
    return {
        f"training step, {name}": training_step(attached, jitter)
        for name, attached, jitter in (
            ("untouched", False, None),
            ("flow", True, None),
            ("flow, stretched times", True, stretched),
        )
    }


def training_step(attached: bool, jitter: floater.TimeJitter | None) -> dict[str, Any]:
    """Count forward and backward of the third step."""
    torch.manual_seed(0)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=100,
            num_hidden_layers=LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=128,
        )
    ).train()
    if attached:
        floater.attach(model, flow_config()).jitter = jitter
    move(model)
    ids = torch.randint(5, 100, (ROWS, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, LENGTH // 2 :] = 0
    batch: dict[str, Tensor] = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    for _ in range(3):
        on_device = {name: OnDevice(tensor) for name, tensor in batch.items()}
        with Count() as forward:
            loss = model(**on_device).loss
        with Count() as backward:
            loss.backward()
        update(model)
    return described([forward, backward])


def update(module: nn.Module) -> None:
    """Change the weights a little, as an optimiser does."""
    with Count(), torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1 + UPDATE)
            parameter.grad = None


def described(counts: Sequence[Count]) -> dict[str, Any]:
    """Return the numbers of some counts together."""
    launches = sum((count.launches for count in counts), Counter())
    waits = sum((count.waits for count in counts), Counter())
    return {
        "launches": launches.total(),
        "waits": waits.total(),
        "which": ", ".join(f"{reason} {number}" for reason, number in waits.items()),
        "operations": dict(launches.most_common()),
    }


if __name__ == "__main__":
    raise SystemExit(main())
