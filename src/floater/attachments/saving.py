"""Save and load attachments: the base the Hugging Face way, the attachment beside it, safetensors
throughout.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..encoders import ENCODER_CONFIGS, Encoder
from ..errors import AttachmentError, LayoutError, SavedError, brief, first_line
from ..files import (
    HASHES,
    check_hashes,
    file_hash,
    link_tree,
    new_folder,
    record_hashes,
    write_text,
)
from .attaching import attachment, bind
from .attachment import FORMAT, NAME, Attachment
from .building import Misfit, Shapes
from .card import model_card
from .layouts import base_of
from .sites import Sites

CONFIG, WEIGHTS = "floater_config.json", "floater.safetensors"


def attach_described(
    model: nn.Module, description: Mapping[str, Any], shapes: Shapes | None = None
) -> Attachment:
    """Make an attachment from its description; `shapes` are those of the weights it is to take."""
    try:
        encoder = dict(description["encoder"])
        kind = encoder.pop("kind")
        if description["format"] != FORMAT or kind not in ENCODER_CONFIGS:
            raise SavedError(
                f"Format {description['format']!r} with encoder {kind!r} is not one this version "
                f"reads (format {FORMAT}; {', '.join(ENCODER_CONFIGS)}); install a newer "
                "floater-transformers."
            )
        return bind(
            model,
            ENCODER_CONFIGS[kind](**encoder),
            sites=Sites(**description["sites"]),
            positions=description["positions"],
            per_stack=description["per_stack"],
            indices=description["indices"],
            shapes=shapes,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, LayoutError):
            raise
        what = (
            f"lacks {error}" if isinstance(error, KeyError) else f"is damaged: {first_line(error)}"
        )
        raise SavedError(f"The saved description of the attachment {what.rstrip('.')}.") from None


def save_pretrained(model: nn.Module, folder: str | os.PathLike[str], *, base: bool = True) -> None:
    """Write a model with its attachment: `floater_config.json`, `floater.safetensors`, a model
    card, and the base.

    Args:
        model: a model with an attachment.
        folder: where to; files of the same names are replaced, each as a whole.
        base: also write the base, as its own `save_pretrained` does. Without it, the base is named
            and fingerprinted, and loading onto another one is refused.
    """
    made = attachment(model)
    if made is None:
        raise AttachmentError("The model has no attachment; call floater.attach first.")
    if not (hasattr(model, "save_pretrained") and hasattr(model, "config")):
        raise AttachmentError(
            "`model` must be a Hugging Face model to be saved as one, but is a "
            f"{type(model).__name__}; save its state_dict(), which holds the attachment too."
        )
    if hasattr(model, "peft_config") and hasattr(model, "merge_and_unload"):
        raise AttachmentError(
            'A PEFT model must be saved by PEFT itself, with modules_to_save=["floater"], or merged'
            " first (model.merge_and_unload()), but was given as it is."
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise AttachmentError(
            "A model with an adapter of its own (model.add_adapter) must be wrapped by PEFT instead"
            " (get_peft_model), which saves and merges it, but was given as it is."
        )
    packed = [name for name, value in model.state_dict().items() if not isinstance(value, Tensor)]
    if packed:
        raise AttachmentError(
            f"A model must be saved before it is quantised: {packed[0]} is packed, and safetensors "
            "hold plain tensors only."
        )
    _check_folder(folder)
    with _aside(Path(folder), base) as place:
        if base:
            state = {
                name: tensor
                for name, tensor in model.state_dict().items()
                if not name.startswith(f"{NAME}.")
            }
            model.save_pretrained(place, state_dict=state)  # type: ignore[operator]
        tensors = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in made.encoders.state_dict().items()
        }
        tensors |= {
            f"baked.{name}": table.detach().cpu().contiguous()
            for name, table in made.baked_tables().items()
        }
        save_file(tensors, place / WEIGHTS)
        config: Any = model.config
        description = {
            **made.describe(),
            "baked": made.baked_length,
            "weights_sha256": file_hash(place / WEIGHTS),
            "base": {
                "name": (
                    getattr(config, "_name_or_path", "")
                    or ("" if not base else type(model).__name__)
                ),
                "included": base,
                "fingerprint": fingerprint(model),
            },
        }
        write_text(place / CONFIG, json.dumps(description, indent=2) + "\n")
        write_text(place / "README.md", model_card(model, made, description))
        record_hashes(place)


def from_pretrained(
    auto_class: Any,
    folder: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Any:
    """Load what :func:`save_pretrained` wrote, or a checkpoint of the Trainer, and attach again.

    Args:
        auto_class: the class to load the base with, e.g. `AutoModelForMaskedLM`.
        folder: the saved folder.
        base: where the base is, if the folder holds the attachment only; the name that was stored
            unless given.
        **kwargs: passed to the class's own `from_pretrained`; code that a folder brings along is
            never run unless `trust_remote_code=True` is among them.
    """
    if not hasattr(auto_class, "from_pretrained"):
        raise SavedError(
            "`auto_class` must be a model class such as AutoModelForMaskedLM, but is "
            f"{auto_class!r}."
        )
    _check_folder(folder)
    place = Path(folder)
    if not place.is_dir():
        raise SavedError(f"{place} must be a folder with a saved model, but there is none.")
    check_hashes(place, SavedError, _CHANGED)
    description = _read_description(place)
    about = _about_base(place, description)
    included = about.get("included", True)
    where = place if included else Path(base) if base is not None else about.get("name")
    if not where:
        raise SavedError(
            f"{place} holds an attachment only, made for a base without a name; give base=… with "
            "its folder."
        )
    saved = _Saved(where)
    if not saved.serves(auto_class):
        raise SavedError(saved.unfit(auto_class))
    with quiet():
        try:
            model = auto_class.from_pretrained(
                where, use_safetensors=True, **{"trust_remote_code": False, **kwargs}
            )
        except Exception as error:  # other libraries raise what they like for a damaged file
            if "Unrecognized configuration class" in str(
                error
            ):  # an Auto class without this architecture
                raise SavedError(saved.unfit(auto_class)) from None
            hint = (
                ""
                if included or base is not None
                else " Give base=… with the folder of the base model."
            )
            raise SavedError(
                f"The base model at {where} cannot be loaded: {first_line(error)}{hint}"
            ) from None
    if not isinstance(model, nn.Module):
        raise SavedError(saved.unfit(auto_class))
    _check_base(model, place, where, about, kwargs)
    tensors = _read_weights(place, description)
    try:
        made = attach_described(
            model, description, {name: tensor.shape for name, tensor in tensors.items()}
        )
        _load_weights(made, place, tensors, description)
    except (LayoutError, Misfit):
        if type(model).__name__ in saved.architectures:
            raise
        raise SavedError(saved.unfit(auto_class)) from None
    made.train(model.training)
    return model


_CHANGED = f"save the model again, or remove {HASHES} if the change is yours."
_RESHAPING = ("dtype", "torch_dtype", "quantization_config", "device_map", "tp_plan")
"""Arguments of `from_pretrained` after which the weights in memory are not those on disk."""


def _about_base(place: Path, description: Mapping[str, Any]) -> Mapping[str, Any]:
    about = description.get("base", {})
    if not isinstance(about, dict) or not isinstance(about.get("name", ""), str):
        raise SavedError(
            f"{place / CONFIG} must say what its base is, but `base` is {brief(about)}; save the "
            "model again."
        )
    return about


def _check_base(
    model: nn.Module,
    place: Path,
    where: str | Path,
    about: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Refuse a base whose weights are not those that the attachment was saved with."""
    known = about.get("fingerprint")
    if about.get("included", True):  # where hashes were recorded, they were checked
        if known is None or (place / HASHES).exists() or any(name in kwargs for name in _RESHAPING):
            return
        if fingerprint(model) != known:
            raise SavedError(
                f"The weights of the base in {place} are damaged or were changed after they were "
                f"saved: their fingerprint is not the one in {CONFIG}; save the model again."
            )
    elif fingerprint(model) != known:
        raise SavedError(
            f"The attachment in {place} was made for another base ({about.get('name')}): the "
            f"weights of {where} have another fingerprint. Give the right base, or attach anew."
        )


class _Saved:
    """What the config.json of a saved base says of its architecture; empty where there is none to
    read.
    """

    def __init__(self, where: str | Path) -> None:
        self._where = where
        try:
            config = json.loads((Path(where) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            config = {}
        config = config if isinstance(config, dict) else {}
        named = config.get("architectures")
        self.architectures: list[str] = (
            [str(name) for name in named] if isinstance(named, list) else []
        )
        self._model_type = config.get("model_type")

    def serves(self, auto_class: Any) -> bool:
        """False for a class of another architecture, which transformers would fill with random
        weights.
        """
        wanted = getattr(getattr(auto_class, "config_class", None), "model_type", None)
        return not (wanted and self._model_type) or wanted == self._model_type

    def unfit(self, auto_class: Any) -> str:
        """What to say of a class that does not fit."""
        name = getattr(auto_class, "__name__", repr(auto_class))
        known = (
            self.architectures[0] if self.architectures else f"a model of type {self._model_type!r}"
        )
        advice = (
            f"transformers.{known}, or an Auto class that makes it"
            if self.architectures
            else "the class it was saved from"
        )
        return (
            f"`auto_class` must fit the model at {self._where}, saved as {known}, but is {name}; "
            f"use {advice}."
        )


def fingerprint(model: nn.Module) -> str:
    """A hash over the names, shapes and values of the base model's weights, without head, pooler
    and attachment.
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


def _read_description(place: Path) -> dict[str, Any]:
    own, plain = place / CONFIG, place / "config.json"
    source = own if own.exists() else plain
    try:
        found = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SavedError(
            f"{place} must hold {CONFIG} (or a Trainer checkpoint), but holds neither."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SavedError(f"{source} is damaged: {first_line(error)}.") from None
    if source is plain:
        found = found.get(NAME) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise SavedError(
            f"{place} holds a model without an attachment; load it with its own from_pretrained."
        )
    return found


def _load_weights(
    made: Attachment, place: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    baked = {
        name[len("baked.") :]: tensor
        for name, tensor in tensors.items()
        if name.startswith("baked.")
    }
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith("baked.")}
    try:
        made.encoders.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise Misfit(
            f"The weights in {place} do not fit their description: {first_line(error, 1)}"
        ) from None
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise SavedError(
                f"{place / WEIGHTS} must hold finite weights, but {name} does not; save the model "
                "again."
            )
    if "baked" in description and (description["baked"] is not None) != bool(baked):
        raise SavedError(
            f"{place / WEIGHTS} must hold baked encodings where {CONFIG} says so, but they "
            "disagree; save it again."
        )
    if baked:
        _check_baked(made, place, baked, description)
        like = next(made.encoders.parameters(), None)
        made.set_baked(
            {
                name: table if like is None else table.to(like.device)
                for name, table in baked.items()
            }
        )


def _check_baked(
    made: Attachment, place: Path, baked: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Refuse stored encodings that cannot be those of this attachment."""
    encoders = {
        name: encoder for name, encoder in made.encoders.items() if isinstance(encoder, Encoder)
    }
    if baked.keys() != encoders.keys():
        raise SavedError(
            f"{place / WEIGHTS} must hold baked encodings of {', '.join(encoders)}, but has "
            f"{', '.join(baked)}; save the model again."
        )
    for name, table in baked.items():
        wanted = (description.get("baked", len(table)), encoders[name].sites, encoders[name].dim)
        if (
            tuple(table.shape) != wanted
            or not table.is_floating_point()
            or not bool(torch.isfinite(table).all())
        ):
            raise SavedError(
                f"{place / WEIGHTS} must hold finite baked encodings of shape {wanted}, but those "
                f"of {name!r} are {table.dtype} of shape "
                f"{tuple(table.shape)}"
                f"{'' if tuple(table.shape) != wanted else ', not all finite'}; "
                "save the model again."
            )


def _read_weights(place: Path, description: Mapping[str, Any]) -> dict[str, Tensor]:
    file = place / WEIGHTS
    if (place / CONFIG).exists():
        if not file.exists():
            raise SavedError(f"{place} must hold {WEIGHTS}, but does not.")
        if "weights_sha256" in description and file_hash(file) != description["weights_sha256"]:
            raise SavedError(
                f"{file} is damaged or was changed after it was saved: its hash is not the one in "
                f"{CONFIG}."
            )
        return _load(file)
    prefix = (  # a checkpoint of the Trainer: everything is in the model's own files
        f"{NAME}.encoders."
    )
    found: dict[str, Tensor] = {}
    for part in sorted(place.glob("model*.safetensors")):
        found |= {
            name[len(prefix) :]: tensor
            for name, tensor in _load(part).items()
            if name.startswith(prefix)
        }
    return found


def _load(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise SavedError(f"{file} is damaged: {first_line(error)}.") from None


def _check_folder(folder: object) -> None:
    if not isinstance(folder, (str, os.PathLike)):
        raise SavedError(f"`folder` must be a path, but is {brief(folder)}.")


@contextmanager
def _aside(folder: Path, base: bool) -> Iterator[Path]:
    """A new folder that takes the place of the wanted one when all is written, with what else that
    one holds.
    """
    if folder.exists() and not folder.is_dir():
        raise SavedError(f"{folder} must be a folder, but is a file.")
    folder = folder.resolve()
    if folder.is_dir() and (
        _in_use(folder) or os.path.ismount(folder) or not os.access(folder.parent, os.W_OK)
    ):
        with new_folder(
            folder / ".saving", SavedError
        ) as inner:  # its name cannot be given to another folder
            yield inner
        for file in sorted(
            (folder / ".saving").iterdir(), key=lambda path: path.name == HASHES
        ):  # hashes last: they tell
            os.replace(file, folder / file.name)
        (folder / ".saving").rmdir()
        return
    with new_folder(folder, SavedError) as place:
        yield place
        stale = re.compile(r"model.*\.safetensors(\.index\.json)?" if base else r"")
        for path in folder.iterdir() if folder.exists() else ():
            if not (place / path.name).exists() and not stale.fullmatch(path.name):
                link_tree(path, place / path.name)


def _in_use(folder: Path) -> bool:
    """Whether this process works in a folder, or below it."""
    try:
        return Path.cwd().is_relative_to(folder)
    except OSError:
        return False


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers does not report weights that are new, or those of an attachment as
    unexpected.
    """
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(before)
