"""Save a model with its attachment: the base as Hugging Face does, the attachment beside it as JSON
and safetensors.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..errors import AttachmentError, SavedError, brief
from ..files import HASHES, file_hash, link_tree, new_folder, record_hashes, write_text
from .attaching import attachment
from .attachment import Attachment
from .card import model_card
from .context import NAME
from .layouts import base_of

CONFIG_FILE, WEIGHTS_FILE = "floater_config.json", "floater.safetensors"


def save_pretrained(model: nn.Module, folder: str | os.PathLike[str], *, base: bool = True) -> None:
    """Write a model with its attachment: `floater_config.json`, `floater.safetensors`, a model
    card, and the base.

    Args:
        model: a model with an attachment.
        folder: where to write; files of the same names are replaced atomically.
        base: also write the base, with its own `save_pretrained`. Without it, the name and the
            fingerprint of the base are saved, and loading onto another base is refused.
    """
    attached = attachment(model)
    if attached is None:
        raise AttachmentError("The model has no attachment; call floater.attach first.")
    _check_saveable(model)
    check_path(folder)
    with staging_folder(Path(folder), base) as staging:
        if base:
            state = {
                name: tensor
                for name, tensor in model.state_dict().items()
                if not name.startswith(f"{NAME}.")
            }
            with attached.context.own_limit():
                model.save_pretrained(staging, state_dict=state)  # type: ignore[operator]
        save_file(_tensors(attached), staging / WEIGHTS_FILE)
        config: Any = model.config
        description = {
            **attached.describe(),
            "range": attached.trained_range or None,
            "baked": attached.baked_length,
            "weights_sha256": file_hash(staging / WEIGHTS_FILE),
            "base": {
                "name": (
                    getattr(config, "_name_or_path", "")
                    or ("" if not base else type(model).__name__)
                ),
                "included": base,
                "fingerprint": fingerprint(model),
            },
        }
        write_text(staging / CONFIG_FILE, json.dumps(description, indent=2) + "\n")
        write_text(staging / "README.md", model_card(model, attached, description))
        record_hashes(staging)


def fingerprint(model: nn.Module) -> str:
    """A hash of the names, shapes and values of the base model's weights, without head, pooler and
    attachment.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(base_of(model).state_dict().items()):
        if name.startswith((f"{NAME}.", "pooler.")):
            continue
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(
            value.view(torch.uint8).numpy().tobytes() if value.dim() else str(value.item()).encode()
        )
    return digest.hexdigest()


def check_path(folder: object) -> None:
    """Refuse a folder that is not a path."""
    if not isinstance(folder, (str, os.PathLike)):
        raise SavedError(f"`folder` must be a path, but is {brief(folder)}.")


def _check_saveable(model: nn.Module) -> None:
    """Refuse models whose weights would be incomplete in the saved folder."""
    if not (hasattr(model, "save_pretrained") and hasattr(model, "config")):
        raise AttachmentError(
            "`model` must be a Hugging Face model to be saved as one, but is a "
            f"{type(model).__name__}; save its state_dict(), which contains the attachment."
        )
    if hasattr(model, "peft_config") and hasattr(model, "merge_and_unload"):
        raise AttachmentError(
            'A PEFT model must be saved with its own save_pretrained (modules_to_save=["floater"]),'
            " or merged first (model.merge_and_unload()), but was passed as it is."
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise AttachmentError(
            "A model with an adapter (model.add_adapter) must be wrapped by PEFT instead"
            " (get_peft_model), which saves and merges the adapter, but was passed as it is."
        )
    packed = [name for name, value in model.state_dict().items() if not isinstance(value, Tensor)]
    if packed:
        raise AttachmentError(
            f"A model must be saved before it is quantised, but {packed[0]} is packed, and "
            "safetensors store plain tensors only."
        )


def _tensors(attached: Attachment) -> dict[str, Tensor]:
    """The weights and baked tables of an attachment."""
    tensors = dict(attached.encoders.state_dict())
    tensors |= {f"baked.{name}": table for name, table in attached.baked_tables().items()}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


@contextmanager
def staging_folder(folder: Path, base: bool) -> Iterator[Path]:
    """A temporary folder that replaces the given one once everything is written. Other files of the
    old folder are carried over.
    """
    if folder.exists() and not folder.is_dir():
        raise SavedError(f"{folder} must be a folder, but is a file.")
    folder = folder.resolve()
    if folder.is_dir() and not _replaceable(folder):
        inner = folder / ".saving"
        with new_folder(inner, SavedError) as staging:
            yield staging
        # Hashes last: until then, they show that files are from two different saves.
        for file in sorted(inner.iterdir(), key=lambda path: path.name == HASHES):
            os.replace(file, folder / file.name)
        inner.rmdir()
        return
    with new_folder(folder, SavedError) as staging:
        yield staging
        stale = re.compile(r"model.*\.safetensors(\.index\.json)?" if base else r"")
        for path in folder.iterdir() if folder.exists() else ():
            if not (staging / path.name).exists() and not stale.fullmatch(path.name):
                link_tree(path, staging / path.name)


def _replaceable(folder: Path) -> bool:
    """Whether another folder can take the name of this one: not while this process works in it or
    below, nor for a mount point, nor without write access to its parent.
    """
    if os.path.ismount(folder) or not os.access(folder.parent, os.W_OK):
        return False
    try:
        return not Path.cwd().is_relative_to(folder)
    except OSError:
        return True
