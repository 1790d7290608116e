"""Finished runs and a saved model to break, and what they give while they are intact."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

import floater
from floater.experiments.tiny_data import write_tiny_data
from floater.experiments.variants import embedded

from .processes import Work, command, run

SHORT = (
    *("--set", "training.updates=4"),
    *("--set", "training.save_every=2"),
    *("--set", "training.evaluate_every=4"),
)
"""Options that make an understanding run short."""
_LIMIT = 300.0


def settings(updates: int = 8) -> dict[str, Any]:
    """Return the settings of a translation run that takes a second."""
    sizes = (("train", 120), ("valid", 4), ("test", 4))
    changes = {
        "data": {"embedded": {split: {"pairs": pairs} for split, pairs in sizes}},
        "vocabulary": {"size": 320},
        "model": {"dim": 16, "feed_forward": 16, "heads": 2},
        "training": {
            "updates": updates,
            "save_every": 2,
            "evaluate_every": 4,
            "batch_tokens": 256,
            "log_every": 2,
        },
        "decoding": {"length_bins": [16]},
    }
    return embedded("flow-blocks", **changes)


def tiny_bert() -> BertForMaskedLM:
    """Return a random BERT of two layers."""
    config = BertConfig(
        vocab_size=40,
        max_position_embeddings=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = BertForMaskedLM(config)
    model.eval()
    return model


@dataclass
class World:
    """Finished things to break, and their results while they are intact.

    Args:
        root: an empty folder. `run` is a finished translation run, `half` one that was killed after
            its second checkpoint, `rte` an understanding run that starts from `dynamics`, and
            `model` a saved model.
    """

    root: Path
    references: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "config.yaml").write_text(yaml.safe_dump(settings()))
        write_tiny_data(self.root / "world", self.root / "dynamics")
        (self.root / "input.txt").write_text("four hundred\nseven\n")
        for name, work in self._jobs().items():
            finished = run(work, _LIMIT)
            if finished.code != (-signal.SIGKILL if name == "half" else 0):
                raise SystemExit(
                    f"The world cannot be built: {name} ended with exit code {finished.code}.\n"
                    f"{finished.out}\n{finished.err}"
                )
        self.references["weights"] = load_file(self.root / "run" / "model" / "model.safetensors")
        self.references["floater"] = load_file(self.root / "run" / "model" / "floater.safetensors")
        self.references["translate"] = run(self.translate(self.root / "run")).out
        self.references["model"] = run(self.outputs(self.root / "model")).out

    def _jobs(self) -> dict[str, Work]:
        root = self.root
        train = ("train", root / "config.yaml", "--out")
        return {
            "run": command(*train, root / "run"),
            "half": command(*train, root / "half", before=_die_after_two_checkpoints),
            "dynamics": command(
                "train", root / "world" / "dynamics.yaml", "--out", root / "dynamics"
            ),
            "rte": command("train", root / "world" / "rte.yaml", "--out", root / "rte", *SHORT),
            "model": self._save_model,
        }

    def _save_model(self) -> None:
        torch.manual_seed(0)
        model = tiny_bert()
        config = floater.FlowConfig(pace="free", zero_init=False, initial_scale=0.5)
        floater.attach(model, config).bake(12)
        floater.save_pretrained(model, self.root / "model")

    def train(self, out: Path, *arguments: object, before: Work | None = None) -> Work:
        """Train the translation run into a folder, or resume what the folder holds."""
        resume = ("--resume",) if out.exists() else ()
        config = self.root / "config.yaml"
        return command("train", config, "--out", out, *resume, *arguments, before=before)

    def translate(self, folder: Path) -> Work:
        """Translate two lines with a run."""
        return command("translate", folder, "--input", self.root / "input.txt")

    def outputs(self, folder: Path) -> Work:
        """Print a hash of the outputs of a saved model."""

        def work() -> None:
            sys.argv = ["floater"]
            try:
                model = floater.from_pretrained(AutoModelForMaskedLM, folder)
                with torch.no_grad():
                    out = model(input_ids=torch.arange(3, 12)[None]).logits
            except floater.FloaterError as error:
                print(f"floater: {str(error).splitlines()[0]}", file=sys.stderr)
                sys.exit(2 if "\n" not in str(error) else 1)
            print(hashlib.sha256(out.numpy().tobytes()).hexdigest())

        return work

    def copy(self, name: str, place: Path) -> Path:
        """Copy one of the folders."""
        shutil.copytree(self.root / name, place / name, symlinks=True)
        return place / name

    def same_model(self, folder: Path) -> bool:
        """Whether a finished run has the weights of the reference."""
        for name, file in (("weights", "model.safetensors"), ("floater", "floater.safetensors")):
            weights = load_file(folder / "model" / file)
            if not all(
                torch.equal(weights[key], value) for key, value in self.references[name].items()
            ):
                return False
        return True


def _die_after_two_checkpoints() -> None:
    trainer: Any = importlib.import_module("floater.training.trainer")
    publish, count = trainer.publish, 0

    def die(*args: Any) -> None:
        nonlocal count
        publish(*args)
        count += 1
        if count == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.publish = die
