from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from floater.attachments import attachment
from floater.errors import ConfigError
from floater.tasks.translation.config import (
    JitterConfig,
    TranslationConfig,
    TranslationPositions,
    VocabularyConfig,
)
from floater.tasks.translation.task import make_model
from floater.tasks.translation.vocabulary import learn

from .corpora import pairs, settings

FLOW = {"encoder": {"kind": "flow", "zero_init": False, "initial_scale": 0.5}, "sites": "blocks"}


def times_seen(folder: Path, **jitter: float) -> list[torch.Tensor]:
    """Times that the encoder is asked for in a forward of training, and in one of evaluation; each
    once, rising.
    """
    config = TranslationConfig(
        **settings(folder, positions={**FLOW, "jitter": jitter}, model={"dropout": 0.0})
    )
    words = learn([line for side in pairs(200, 0) for line in side], VocabularyConfig(size=300))
    model = make_model(config, words)
    model.jitter = config.positions.jitter
    seen: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    made = attachment(model)
    assert made is not None
    made.encoder.register_forward_hook(
        lambda module, inputs, output: seen[module.training].append(inputs[0].flatten())
    )
    ids = torch.randint(5, 100, (2, 7))
    for training in (True, False):
        model.train(training)
        model(
            input_ids=ids, decoder_input_ids=ids, labels=ids, num_items_in_batch=14
        ).loss.backward()
    return [torch.cat(found).unique() for found in seen.values()]


def test_times_are_moved_and_stretched_while_training_only(tmp_path: Path) -> None:
    trained, evaluated = times_seen(tmp_path, offset=50.0, stretch=3.0)
    assert 0 < trained[0] < 5.0
    steps = trained.diff()
    assert torch.allclose(steps, steps[0])
    assert 0.1 < steps[0] < 0.3
    assert torch.allclose(evaluated, 0.1 * torch.arange(len(evaluated), dtype=torch.float64))
    assert len(trained) == 7


def test_a_share_of_the_batches_is_moved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    seen = [times_seen(tmp_path, stretch=3.0, share=0.5) for _ in range(12)]
    moved = [not torch.allclose(trained, evaluated) for trained, evaluated in seen]
    assert 1 <= sum(moved) <= 11


def test_no_jitter_is_plain_training(tmp_path: Path) -> None:
    trained, evaluated = times_seen(tmp_path, offset=0.0, stretch=1.0)
    assert torch.allclose(trained, evaluated)


@pytest.mark.parametrize(
    "positions", [{}, {"encoder": {"kind": "learned"}}, {**FLOW, "own": "keep"}]
)
def test_encoders_without_times_in_between_are_refused(positions: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="`jitter` needs an encoder that serves any time"):
        TranslationPositions(**positions, jitter=JitterConfig(offset=3))
