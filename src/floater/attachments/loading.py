"""Load a model with its attachment. Only JSON and safetensors are read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from ..config import saved_encoder
from ..encoders import ENCODER_CONFIGS, PhaseFlowConfig, RotaryConfig, TableFlowConfig
from ..errors import LayoutError, SavedError, brief, first_line
from ..files import HASHES, check_hashes
from .attaching import bind
from .attachment import ATTACHMENT_FORMAT, Attachment
from .building import Shapes, WeightsMismatch
from .context import NAME
from .jitter import TimeJitter
from .saved_base import SavedBase
from .saved_weights import load_range, load_weights, read_weights
from .saving import CONFIG_FILE, check_path, fingerprint
from .sites import Sites


def from_pretrained(
    auto_class: Any,
    folder: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Any:
    """Load a model saved by :func:`save_pretrained`, or a checkpoint of the Trainer, and attach.

    Args:
        auto_class: the class to load the base with, e.g. `AutoModelForMaskedLM`.
        folder: the saved folder.
        base: folder of the base, for a folder without it. Default: the saved name of the base.
        **kwargs: passed to the class's own `from_pretrained`. Code in a folder is never executed,
            unless `trust_remote_code=True` is passed.
    """
    if not hasattr(auto_class, "from_pretrained"):
        raise SavedError(
            "`auto_class` must be a model class such as AutoModelForMaskedLM, but is "
            f"{auto_class!r}."
        )
    check_path(folder)
    folder = Path(folder)
    if not folder.is_dir():
        raise SavedError(f"{folder} must be a folder with a saved model, but does not exist.")
    check_hashes(folder, SavedError, _CHANGED)
    description = _read_description(folder)
    base_info = _base_info(folder, description)
    included = base_info.get("included", True)
    location = folder if included else Path(base) if base is not None else base_info.get("name")
    if not location:
        raise SavedError(
            f"{folder} must name its base, but holds the attachment of a base without a name; pass "
            "base=… with the folder of the base."
        )
    hint = "" if included or base is not None else " Pass base=… with the folder of the base."
    saved_base = SavedBase.in_folder(location)
    own = {} if "config" in kwargs else saved_base.own_limit(description.get("extension"))
    model = _load_base(auto_class, location, saved_base, hint, {**own, **kwargs})
    _check_base(model, folder, location, base_info, kwargs)
    tensors = read_weights(folder, description)
    try:
        attached = attach_described(
            model, description, {name: tensor.shape for name, tensor in tensors.items()}
        )
        load_weights(attached, folder, tensors, description)
        load_range(attached, folder, tensors, description)
    except (LayoutError, WeightsMismatch):
        if type(model).__name__ in saved_base.architectures:
            raise
        raise SavedError(saved_base.mismatch(auto_class)) from None
    attached.train(model.training)
    return model


def attach_described(
    model: nn.Module, description: Mapping[str, Any], shapes: Shapes | None = None
) -> Attachment:
    """Create an attachment from its description; `shapes` are those of the weights it will load."""
    try:
        encoder = saved_encoder(description["encoder"])
        kind = encoder.pop("kind")
        formats = range(1, ATTACHMENT_FORMAT + 1)
        if description["format"] not in formats or kind not in ENCODER_CONFIGS:
            raise SavedError(
                f"The saved attachment must have format 1 to {ATTACHMENT_FORMAT} and one of the "
                f"encoders {', '.join(ENCODER_CONFIGS)}, but has format {description['format']!r} "
                f"and encoder {kind!r}; install a newer floater-transformers."
            )
        rotary, jitter = description.get("rotary"), description.get("jitter")
        phases, table = description.get("phases"), description.get("table")
        attached = bind(
            model,
            ENCODER_CONFIGS[kind](**encoder),
            rotary=None if rotary is None else RotaryConfig(**rotary),
            phases=None if phases is None else PhaseFlowConfig(**phases),
            table=None if table is None else TableFlowConfig(**table),
            sites=Sites(**description["sites"]),
            positions=description["positions"],
            per_stack=description["per_stack"],
            indices=description["indices"],
            jitter=None if jitter is None else TimeJitter(**jitter),
            beyond=description.get("beyond", "extrapolate"),
            shapes=shapes,
        )
        if description.get("extension") is not None:
            before, after = map(int, description["extension"])
            attached.raise_limit((before, after))
        return attached
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, LayoutError):
            raise
        problem = (
            f"lacks {error}" if isinstance(error, KeyError) else f"is damaged: {first_line(error)}"
        )
        raise SavedError(
            f"The saved description of the attachment {problem.rstrip('.')}."
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers does not warn about new weights, nor about those of an attachment as
    unexpected.
    """
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(before)


# The base -----------------------------------------------------------------------------------------

_CHANGED = f"save the model again, or remove {HASHES} if you changed it on purpose."
_CHANGING_ARGUMENTS = ("dtype", "torch_dtype", "quantization_config", "device_map", "tp_plan")
"""Arguments of `from_pretrained` that make the weights in memory differ from those on disk."""


def _base_info(folder: Path, description: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the description records about the base."""
    info = description.get("base", {})
    if not isinstance(info, dict) or not isinstance(info.get("name", ""), str):
        raise SavedError(
            f"{folder / CONFIG_FILE} must describe its base, but `base` is {brief(info)}; save the "
            "model again."
        )
    return info


def _load_base(
    auto_class: Any,
    location: str | Path,
    saved_base: SavedBase,
    hint: str,
    kwargs: Mapping[str, Any],
) -> nn.Module:
    """Load the base with the caller's class."""
    if not saved_base.fits(auto_class):
        raise SavedError(saved_base.mismatch(auto_class))
    with quiet():
        try:
            model = auto_class.from_pretrained(
                location, use_safetensors=True, **{"trust_remote_code": False, **kwargs}
            )
        except Exception as error:  # other libraries raise any type for a damaged file
            if isinstance(error, ValueError) and not Path(location).is_dir():
                on_hub = SavedBase.on_hub(location, kwargs)
                if not on_hub.fits(auto_class):
                    raise SavedError(on_hub.mismatch(auto_class)) from None
            raise SavedError(
                f"The base model at {location} cannot be loaded: {first_line(error)}{hint}"
            ) from None
    if not isinstance(model, nn.Module):
        raise SavedError(saved_base.mismatch(auto_class))
    return model


def _check_base(
    model: nn.Module,
    folder: Path,
    location: str | Path,
    info: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Refuse a base whose weights are not those that the attachment was saved with."""
    expected = info.get("fingerprint")
    if info.get("included", True):
        hashed = (folder / HASHES).exists()  # then hashes were checked already
        if expected is None or hashed or any(name in kwargs for name in _CHANGING_ARGUMENTS):
            return
        if fingerprint(model) != expected:
            raise SavedError(
                f"The weights of the base in {folder} are damaged or were changed after they were "
                f"saved: their fingerprint is not the one in {CONFIG_FILE}; save the model again."
            )
    elif fingerprint(model) != expected:
        raise SavedError(
            f"The attachment in {folder} was made for another base ({info.get('name')}): the "
            f"weights of {location} have another fingerprint; pass the right base, or attach again."
        )


# The attachment -----------------------------------------------------------------------------------


def _read_description(folder: Path) -> dict[str, Any]:
    """The description of the attachment: from its own file, or from the config of a checkpoint."""
    file, checkpoint = folder / CONFIG_FILE, folder / "config.json"
    source = file if file.exists() else checkpoint
    try:
        description = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SavedError(
            f"{folder} must hold {CONFIG_FILE} (or a Trainer checkpoint), but holds neither."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SavedError(f"{source} is damaged: {first_line(error)}.") from None
    if source is checkpoint:
        description = description.get(NAME) if isinstance(description, dict) else None
    if not isinstance(description, dict):
        raise SavedError(
            f"{folder} holds a model without an attachment; load it with its own from_pretrained."
        )
    return description
