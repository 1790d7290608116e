"""From a saved model to the encodings it uses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import transformers
from transformers import PreTrainedModel
from transformers.utils import logging

from ..attachments import Attachment, attachment, from_pretrained
from ..encoders import Encoder, LearnedConfig, NoPosition
from ..errors import ArgumentError, RunError
from ..files import check_hashes, reading
from ..room import check_memory
from .positions import LONGEST, Positions
from .records import CONFIG, RunFolder

_BYTES = 16  # that an encoding's number takes: in the solution, in the table, and in copies of it


def encodings(made: Attachment, length: int, trained: int | None = None) -> Positions | None:
    """What an attachment adds at `length` positions (fewer, where a table ends); None where there
    is no table to show.

    Args:
        made: the attachment.
        length: number of positions.
        trained: length of the longest training example.
    """
    config = made.config
    if isinstance(config, LearnedConfig) and config.beyond == "error":
        length = min(length, config.max_length)
    encoder = next(iter(made.encoders.values()))
    kind = str(made.describe()["encoder"]["kind"])
    if isinstance(encoder, NoPosition):
        own = made.own_table(length)
        if own is None:
            return None
        table, sites, kind, words = own[:, None], ["input"], "own", "the model's own positions"
    else:
        if isinstance(encoder, Encoder):
            _check_size(made, encoder, length)
        found = made.site_tables(length)
        if found is None:
            return None
        assert isinstance(encoder, Encoder)
        table, sites = found, made.site_names()
        words = f"{kind} at {made.sites.kind}" + (
            ", added to the model's own positions" if made.positions == "keep" else ""
        )
    values = table.detach().float().cpu().numpy().transpose(1, 0, 2)
    return Positions(
        made.delta * np.arange(len(table), dtype=np.float64),
        values,
        tuple(sites),
        kind,
        words,
        trained,
    )


def _check_size(made: Attachment, encoder: Encoder, length: int) -> None:
    """Refuse tables that memory has no room for, with the solution they are cut from, before any is
    computed.
    """
    numbers = length * made.num_sites * encoder.dim
    what = f"{length:,} positions at {made.num_sites} sites of {encoder.dim} dimensions"
    check_memory(_BYTES * numbers, what, "ask for fewer positions (--length)", share=0.5)


def load(folder: Path) -> PreTrainedModel:
    """A model that `floater.save_pretrained` wrote, as the class that its config names."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architecture = str(config["architectures"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise ArgumentError(
            f"{folder} must be a run, or a model that floater.save_pretrained wrote with its base, "
            "but is neither."
        ) from None
    wanted = getattr(transformers, architecture, None)
    if not (isinstance(wanted, type) and issubclass(wanted, PreTrainedModel)):
        raise ArgumentError(
            f"{folder} must hold a model of transformers, but names the class {architecture!r}."
        )
    logging.disable_progress_bar()
    advice = "it is damaged: bring it back from a copy, or make it anew."
    check_hashes(folder, RunError, advice)
    with reading(folder, RunError, advice):
        model: PreTrainedModel = from_pretrained(wanted, folder)
    return model


def of_model(folder: Path, length: int, trained: int | None = None) -> Positions | None:
    """The encodings of a saved model."""
    made = attachment(load(folder))
    assert made is not None  # from_pretrained refuses a model without
    return encodings(made, length, trained)


def record_positions(folder: RunFolder) -> Positions | None:
    """Keep the encodings of a run's model in its folder, up to twice the longest training
    example.
    """
    if not folder.model.is_dir():
        raise RunError(
            f"{folder.path} holds no model yet; finish it with `floater train … --resume`, or "
            f"`floater average {folder.path}`."
        )
    trained = folder.facts().get("longest")
    found = of_model(folder.model, min(2 * trained, LONGEST) if trained else LONGEST, trained)
    if found is not None:
        found.write(folder.path)
    return found


def positions_of(path: Path, length: int | None = None) -> Positions | None:
    """The encodings of a run (kept in its folder from then on) or of a model, computed at `length`
    positions.
    """
    if not (path / CONFIG).is_file():
        return of_model(path, length or LONGEST)
    folder = RunFolder(path)
    found = record_positions(folder)
    if found is None or length is None:
        return found
    return (
        found.first(length)
        if length <= len(found.times)
        else of_model(folder.model, length, found.trained)
    )
