"""Cases that call the library with odd numbers."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import floater

from .cases import Case, Verdict
from .processes import run
from .world import World, tiny_bert

_SETTINGS = (
    *("delta", "hidden", "init_scale", "initial_scale", "horizon"),
    *("rtol", "atol", "keep_for", "pull"),
)
_ODD: list[Any] = [0, -1, 1.5, float("nan"), float("inf"), None, "x", 10**20, 1e-300, 5]
_POSITIONS = [0, 1, 7, 29, 29, 400, 10**7, -1]
_TABLE = 30
"""Rows of the model's built-in table of positions."""


def odd_calls(world: World, draw: random.Random) -> Iterator[Case]:
    """Call the library with odd numbers: it must raise its own error or agree with a reference."""
    while True:
        seed = draw.randrange(10**9)
        yield Case(f"library, seed {seed}", partial(_attempt, seed))


def _attempt(seed: int, place: Path) -> Verdict:
    finished = run(lambda: _call(random.Random(seed)))
    outcomes = {0: "right", 2: "refused", 3: "wrong"}
    return outcomes.get(finished.code or 0, finished.outcome()), finished.err


def _call(draw: random.Random) -> None:
    """Exit with 2 if the library refuses, with 3 if its output differs from the reference."""
    torch.manual_seed(draw.randrange(10**6))
    model = tiny_bert().double()
    config: dict[str, Any] = {"zero_init": False, "initial_scale": 0.5}
    for name in _SETTINGS:
        if draw.random() < 0.08:
            config[name] = draw.choice(_ODD)
    length = draw.choice([1, 2, 9, 30])
    ids = torch.randint(3, 40, (2, length))
    given: dict[str, Tensor] = {}
    if draw.random() < 0.5:
        given["position_ids"] = torch.tensor([[draw.choice(_POSITIONS) for _ in range(length)]])
    try:
        out, again = _outputs(model, config, ids, given, draw)
    except floater.FloaterError as error:
        sys.exit(2 if "\n" not in str(error) else 1)
    except (IndexError, RuntimeError) as error:
        if not _is_the_models_own(error, given):
            raise
        sys.exit(2)
    if not bool(torch.isfinite(out).all()) or not torch.allclose(out, again, rtol=1e-6, atol=1e-6):
        print(f"{config} {given} differs by {(out - again).abs().max()}", file=sys.stderr)
        sys.exit(3)


def _outputs(
    model: torch.nn.Module,
    config: dict[str, Any],
    ids: Tensor,
    given: dict[str, Tensor],
    draw: random.Random,
) -> tuple[Tensor, Tensor]:
    """Return the logits, and the logits with the same positions given as times."""
    attachment = floater.attach(
        model,
        floater.FlowConfig(**config),
        sites=draw.choice(["input", "blocks", "qkv"]),
        positions=draw.choice(["keep", "replace"]),
        indices=draw.choice(["model", "mask"]),
    )
    if draw.random() < 0.4:
        attachment.bake(draw.choice([1, 9, 64, 0, 10**13]))
    mask = torch.ones_like(ids)
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask, **given).logits
        by_model = attachment.indices == "model" and given
        rows = given["position_ids"][0] if by_model else torch.arange(ids.shape[1])
        with attachment.at(rows * attachment.delta):
            again = model(input_ids=ids, attention_mask=mask, **given).logits
    return out, again


def _is_the_models_own(error: Exception, given: dict[str, Tensor]) -> bool:
    """Whether an error is the model's, for positions that its built-in table does not have."""
    if not given:
        return False
    lowest, highest = map(int, given["position_ids"].aminmax())
    outside = not 0 <= lowest <= highest < _TABLE
    last_frame = traceback.format_exc().splitlines()[-3]
    return outside and "floater" not in last_frame and "out of" in str(error)
