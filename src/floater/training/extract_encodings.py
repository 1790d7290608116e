"""The position encodings of a model, as data for reports and plots."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import transformers
from torch import nn
from transformers import PreTrainedModel

from ..attachments import Attachment, attachment, from_pretrained
from ..encoders import Encoder, LearnedConfig, NoPosition
from ..errors import ArgumentError, RunError
from ..files import check_hashes, reading
from ..room import check_memory
from ..runs.encodings import MAX_POSITIONS, Encodings
from ..runs.folder import RunFolder
from .process import process_settings

_BYTES = 16  # per number of an encoding: in the solution, in the table, and in copies of it


def extract_encodings(
    attached: Attachment, length: int, trained: int | None = None
) -> Encodings | None:
    """The encodings that an attachment adds; None if it has no table (rotary, relative).

    Args:
        attached: the attachment.
        length: number of positions; a learned table may have fewer.
        trained: length of the longest training example.
    """
    config = attached.config
    if isinstance(config, LearnedConfig) and config.beyond == "error":
        length = min(length, config.max_length)
    encoder = next(iter(attached.encoders.values()), None)
    kind = str(attached.describe()["encoder"]["kind"])
    if isinstance(encoder, NoPosition):
        built_in = attached.own_table(length)
        if built_in is None:
            return None
        table, sites, kind = built_in[:, None], ["input"], "own"
        description = "the model's built-in positions"
    else:
        if isinstance(encoder, Encoder):
            _check_memory(attached, encoder, length)
        tables = attached.site_tables(length)
        if tables is None:
            return None
        table, sites = tables, attached.site_names()
        kept = attached.positions == "keep"
        description = f"{kind} at {attached.sites.kind}" + (
            ", added to the model's built-in positions" if kept else ""
        )
    values = table.detach().float().cpu().numpy().transpose(1, 0, 2)
    times = attached.delta * np.arange(len(table), dtype=np.float64)
    return Encodings(times, values, tuple(sites), kind, description, trained)


def _check_memory(attached: Attachment, encoder: Encoder, length: int) -> None:
    """Refuse tables that do not fit into memory together with the solution they come from."""
    numbers = length * attached.num_sites * encoder.dim
    what = f"{length:,} positions at {attached.num_sites} sites of {encoder.dim} dimensions"
    check_memory(_BYTES * numbers, what, "request fewer positions (--length)", share=0.5)


def store_encodings(folder: RunFolder, model: nn.Module) -> Encodings | None:
    """Store the encodings of a run's model, up to twice the longest training example."""
    attached = attachment(model)
    if attached is None:
        return None
    trained = folder.facts().get("longest")
    length = min(2 * max(trained, 1), MAX_POSITIONS) if trained else MAX_POSITIONS
    encodings = extract_encodings(attached, length, trained)
    if encodings is not None:
        encodings.write(folder.path)
    return encodings


def load_model(folder: Path) -> PreTrainedModel:
    """Load a model that `floater.save_pretrained` wrote, as the class that its config names."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architecture = str(config["architectures"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise ArgumentError(
            f"{folder} must be a run, or a model that floater.save_pretrained wrote with its base, "
            "but is neither."
        ) from None
    model_class = getattr(transformers, architecture, None)
    if not (isinstance(model_class, type) and issubclass(model_class, PreTrainedModel)):
        raise ArgumentError(
            f"{folder} must hold a model of transformers, but names the class {architecture!r}."
        )
    advice = "it is damaged: restore a copy, or create it again."
    check_hashes(folder, RunError, advice)
    with process_settings(), reading(folder, RunError, advice):
        model: PreTrainedModel = from_pretrained(model_class, folder)
    return model


def encodings_of(path: Path, length: int | None = None) -> Encodings | None:
    """The encodings of a run, which stores them, or of a saved model.

    Args:
        path: a run folder, or a model that `floater.save_pretrained` wrote.
        length: number of positions; by default as many as a run stores.
    """
    folder = RunFolder(path)
    if folder.started() and not folder.model.is_dir():
        raise RunError(
            f"{path} holds no model yet; finish it with `floater train … --resume`, or `floater "
            f"average {path}`."
        )
    model = load_model(folder.model if folder.started() else path)
    attached = attachment(model)
    assert attached is not None  # from_pretrained refuses a model without one
    if not folder.started():
        return extract_encodings(attached, length or MAX_POSITIONS)
    encodings = store_encodings(folder, model)
    if encodings is None or length is None:
        return encodings
    if length <= len(encodings.times):
        return encodings.first(length)
    return extract_encodings(attached, length, encodings.trained)
