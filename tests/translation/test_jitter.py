from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import floater
from floater.attachments import attachment
from floater.encoders import Pieces
from floater.errors import ConfigError
from floater.tasks.translation.config import (
    TranslationConfig,
    TranslationPositions,
    VocabularyConfig,
)
from floater.tasks.translation.task import make_model
from floater.tasks.translation.vocabulary import learn

from .corpora import pairs, settings

FLOW = {
    "encoder": {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.5},
    "sites": "blocks",
}


def times_seen(
    monkeypatch: pytest.MonkeyPatch, folder: Path, **jitter: float
) -> list[torch.Tensor]:
    """Times that the encoder is asked for in a forward of training, and in one of evaluation; each
    once, rising.
    """
    config = TranslationConfig(
        **settings(folder, positions={**FLOW, "jitter": jitter}, model={"dropout": 0.0})
    )
    words = learn([line for side in pairs(200, 0) for line in side], VocabularyConfig(size=300))
    model = make_model(config, words)
    seen: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    made = attachment(model)
    assert made is not None
    made.encoder.register_forward_hook(
        lambda module, inputs, output: seen[module.training].append(inputs[0].flatten())
    )
    locate = Pieces.locate  # random times are looked up in the solution's polynomials

    def spy(pieces: Pieces, times: torch.Tensor) -> Any:
        seen[model.training].append(times.flatten())
        return locate(pieces, times)

    monkeypatch.setattr(Pieces, "locate", spy)
    ids = torch.randint(5, 100, (2, 7))
    for training in (True, False):
        model.train(training)
        model(
            input_ids=ids, decoder_input_ids=ids, labels=ids, num_items_in_batch=14
        ).loss.backward()
    return [torch.cat(found).unique() for found in seen.values()]


def test_times_are_moved_and_stretched_while_training_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, evaluated = times_seen(monkeypatch, tmp_path, offset=50.0, stretch=3.0)
    assert 0 < trained[0] < 5.0
    assert torch.allclose(evaluated, 0.1 * torch.arange(len(evaluated), dtype=torch.float64))
    assert len(trained) == 2 * 7  # two rows, and both sides of a pair at the same times


def test_no_jitter_is_plain_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, evaluated = times_seen(monkeypatch, tmp_path, offset=0.0, stretch=1.0)
    assert torch.allclose(trained, evaluated)


@pytest.mark.parametrize(
    "positions", [{}, {"encoder": {"kind": "learned"}}, {**FLOW, "own": "keep"}]
)
def test_encoders_without_times_in_between_are_refused(positions: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="`jitter` needs"):
        TranslationPositions(**positions, jitter=floater.TimeJitter(offset=3))
