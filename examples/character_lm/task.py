"""Predict the next character: a small GPT-2 trained from scratch, with any position encoder.

    python -m examples.character_lm TEXT --out runs/characters

The model trains on windows of `length` characters and is tested at `length` and at twice that,
which shows whether its positions work beyond the trained length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from floater.attachments import Sites, attach, from_pretrained, save_pretrained
from floater.config import Config, Count
from floater.encoders import EncoderConfig, FlowConfig
from floater.errors import DataError
from floater.files import digest, new_folder, read_lines, record_hashes
from floater.runs.folder import RunFolder
from floater.runs.scores import Score, SetScores
from floater.training.checkpoints import require_checkpoints
from floater.training.extract_encodings import store_encodings
from floater.training.loader import EpochLoader, ShuffledBatches
from floater.training.placement import Placement
from floater.training.settings import Pace, RunConfig, TrainingSettings
from floater.training.task import Task
from floater.training.world import World

# 1. The settings, with their defaults. Configs are checked against these types.


class CharacterData(Config):
    """Where the text is, and how it is cut."""

    text: Path
    length: Count = 64
    """Characters of a training window."""


class CharacterPositions(Placement):
    """A flow at the input, instead of GPT-2's table."""

    label_without_encoder = "GPT-2's table"
    encoder: EncoderConfig | None = FlowConfig(pace="free", zero_init=False, initial_scale=0.1)
    sites: Sites = Sites("input")
    own: Literal["keep", "replace"] = "replace"


class CharacterTraining(TrainingSettings):
    """How to train."""

    updates: Count = 200
    batch: Count = 16
    lr: float = 3e-3
    tensorboard: bool = False


class CharacterConfig(RunConfig):
    """One run."""

    task: Literal["character_lm"] = "character_lm"
    data: CharacterData
    dim: Count = 64
    positions: CharacterPositions = CharacterPositions()
    training: CharacterTraining = CharacterTraining()


# 2. The data, read and checked before training.


class Windows:
    """Windows of consecutive characters, as token numbers [windows, length + 1]."""

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        count = (len(tokens) - 1) // length
        self._rows = np.stack([tokens[i * length : i * length + length + 1] for i in range(count)])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Tensor:
        return torch.from_numpy(self._rows[number])


@dataclass(frozen=True)
class CharacterTexts:
    """The alphabet and the encoded text."""

    alphabet: str
    train: Windows
    valid: Windows
    tests: Mapping[str, Windows]
    fingerprints: Mapping[str, Mapping[str, Any]]


def collate(rows: list[Tensor]) -> dict[str, Tensor]:
    """Windows → what GPT-2 takes; the labels are the next characters."""
    windows = torch.stack(rows)
    inputs = windows[:, :-1]
    return {
        "input_ids": inputs,
        "attention_mask": torch.ones_like(inputs),
        "labels": windows[:, 1:].contiguous(),
    }


# 3. The task.


class CharacterTask(Task[CharacterTexts]):
    """Predict the next character; the loss is in nats per character."""

    config: CharacterConfig
    config_class = CharacterConfig
    schedule = "constant_with_warmup"
    main = "loss"
    more_is_better = False

    def prepare(self, folder: RunFolder) -> CharacterTexts:
        data = self.config.data
        lines = read_lines(data.text)
        text = "\n".join(lines)
        alphabet = "".join(sorted(set(text)))
        tokens = np.array([alphabet.index(character) for character in text], dtype=np.int64)
        valid, test = len(tokens) * 8 // 10, len(tokens) * 9 // 10
        if len(tokens) - test <= 2 * data.length:
            raise DataError(
                f"{data.text} must have more than {20 * data.length:,} characters, but has "
                f"{len(tokens):,}; give a longer text, or lower `length`."
            )
        return CharacterTexts(
            alphabet,
            Windows(tokens[:valid], data.length),
            Windows(tokens[valid:test], data.length),
            {
                "test": Windows(tokens[test:], data.length),
                "twice": Windows(tokens[test:], 2 * data.length),
            },
            {"text": {"from": str(data.text), "lines": len(lines), "sha256": digest(lines)}},
        )

    def build_model(self, data: CharacterTexts) -> nn.Module:
        config, positions = self.config, self.config.positions
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(data.alphabet),
                n_embd=config.dim,
                n_layer=2,
                n_head=4,
                n_positions=2 * config.data.length,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        if positions.encoder is not None:
            attach(model, positions.encoder, sites=positions.sites, positions=positions.own)
        return model

    def facts(self, model: nn.Module, data: CharacterTexts) -> dict[str, Any]:
        return {
            "windows": len(data.train),
            "longest": self.config.data.length,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }

    def describe(self, facts: Mapping[str, Any]) -> str:
        return (
            f"{facts['windows']:,} windows of {facts['longest']} characters; "
            f"{facts['parameters']:,} parameters ({facts['positions']})"
        )

    def pace(self, data: CharacterTexts) -> Pace:
        updates = self.config.training.updates
        return Pace(updates, max(updates // 10, 1), max(updates // 4, 1), max(updates // 4, 1))

    def loader(self, data: CharacterTexts, world: World) -> EpochLoader:
        config = self.config
        batches = ShuffledBatches(len(data.train), config.training.batch, config.seed, world)
        return EpochLoader(data.train, batches, collate, config.seed)

    def loss_function(self) -> Any:
        return self._loss

    def _loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Summed over all characters of the batch."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        logits = model(**inputs).logits.float()
        labels = batch["labels"].to(logits.device)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")

    @torch.no_grad()
    def measure(self, model: nn.Module, data: CharacterTexts, world: World) -> dict[str, float]:
        return {"loss": self._mean_loss(model, data.valid)}

    def _mean_loss(self, model: nn.Module, windows: Windows) -> float:
        total, count = 0.0, 0
        device = next(model.parameters()).device
        for batch in self._batches(windows):
            on_device = {name: tensor.to(device) for name, tensor in batch.items()}
            total += float(self._loss(model, on_device))
            count += batch["labels"].numel()
        return total / count

    def _batches(self, windows: Windows) -> Iterator[dict[str, Tensor]]:
        size = self.config.training.batch
        for first in range(0, len(windows), size):
            last = min(first + size, len(windows))
            yield collate([windows[number] for number in range(first, last)])

    def final_model(self, folder: RunFolder) -> nn.Module:
        chosen = require_checkpoints(folder.checkpoints)[-1]
        if self.config.positions.encoder is None:
            bare: nn.Module = GPT2LMHeadModel.from_pretrained(chosen)
            return bare.eval()
        model: nn.Module = from_pretrained(GPT2LMHeadModel, chosen)
        return model.eval()

    @torch.no_grad()
    def finish(
        self, folder: RunFolder, data: CharacterTexts, model: nn.Module, console: Console
    ) -> None:
        store_encodings(folder, model)
        with new_folder(folder.model) as temporary:
            if self.config.positions.encoder is None:
                model.save_pretrained(temporary)  # type: ignore[operator]
            else:
                save_pretrained(model, temporary)
            record_hashes(temporary)
        for name, windows in data.tests.items():
            loss = self._mean_loss(model, windows)
            scores = {
                "loss": Score(score=loss, signature="nats per character", more_is_better=False),
                "bits": Score(
                    score=loss / math.log(2),
                    signature="bits per character",
                    more_is_better=False,
                ),
            }
            fingerprint = dict(data.fingerprints["text"])
            folder.add_scores(
                name, SetScores(scores=scores, examples=len(windows), data=fingerprint)
            )
            console.print(f"{name}: {loss / math.log(2):.3f} bits per character", highlight=False)
