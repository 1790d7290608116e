"""Pretrained encoders: where they are, with which head, with or without a position encoder, and
what of them is trained.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from ...attachments import attach, attachment, from_pretrained
from ...attachments.context import NAME
from ...attachments.layouts import base_of
from ...attachments.loading import quiet
from ...encoders import Flow
from ...errors import ConfigError, RunError
from ...files import check_hashes, reading
from ...runs.checked_json import read_checked
from ...runs.folder import CONFIG
from .config import UnderstandingConfig, UnderstandingPositions
from .problem import Problem

ATTACHMENT = "attachment"
"""Folder of a run that holds its encoder alone."""
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")
_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")


def locate(name: str) -> str:
    """The folder or hub name that a model's address stands for.

    `pip:package/folder` is a folder inside an installed package, which is not imported.
    """
    if name.startswith("pip:"):
        package, _, inside = name.removeprefix("pip:").partition("/")
        found = importlib.util.find_spec(package) if package.isidentifier() else None
        if found is None or not found.submodule_search_locations:
            raise ConfigError(
                f"`name` of `model` must name an installed package, but {package!r} is none; see "
                "requirements-models.txt."
            )
        place = Path(found.submodule_search_locations[0]) / inside
    else:
        place = Path(name)
        if not place.is_dir() and _HUB.fullmatch(name) and not name.startswith("."):
            return name
    if (place / "floater_config.json").is_file():
        raise ConfigError(
            f"`name` of `model` must be a model without an encoder of ours, but {name} has one; "
            "give its base, and the encoder as `dynamics`."
        )
    if not (place / "config.json").is_file():
        raise ConfigError(
            "`name` of `model` must be a folder with a config.json, a name on the hub or "
            f"pip:package/folder, but {name} is none."
        )
    return str(place)


def load_tokenizer(where: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; a fast one that can pad."""
    with reading(
        f"The tokenizer of {where}",
        ConfigError,
        "check the files of the folder, or give another model.",
    ):
        found = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    if (
        not isinstance(found, PreTrainedTokenizerBase)
        or not found.is_fast
        or found.pad_token_id is None
    ):
        raise ConfigError(
            f"The tokenizer of {where} must be a fast one with a padding token, but is a "
            f"{type(found).__name__}."
        )
    return found


def build(problem: Problem[Any, Any], where: str) -> nn.Module:
    """The model a run starts from.

    A new head draws the same weights with and without an encoder.
    """
    config = problem.config
    settings = {**problem.head(), **_dropout(config, where)}
    if config.dynamics is not None:
        model: nn.Module = from_pretrained(
            problem.auto_class,
            attachment_folder(config.dynamics),
            base=where,
            dtype=torch.float32,
            **settings,
        )
        return model
    model = load(problem.auto_class, where, **settings)
    placed = config.positions
    if placed.encoder is not None:
        attach(model, placed.encoder, sites=placed.sites, positions=placed.own)
    return model


def load(auto_class: Any, where: str | Path, **settings: Any) -> Any:
    """A pretrained model in full precision, from safetensors."""
    with quiet():
        advice = "it must hold weights in safetensors of the class that the task needs."
        with reading(f"The model {where}", ConfigError, advice):
            safe = {"use_safetensors": True, "trust_remote_code": False}
            return auto_class.from_pretrained(str(where), dtype=torch.float32, **safe, **settings)


def load_trained(problem: Problem[Any, Any], folder: Path) -> nn.Module:
    """What a run saved, or a checkpoint of it, with its encoder if it has one; ready to be
    measured.
    """
    if not (folder / "config.json").is_file():
        raise RunError(
            f"{folder} must hold a trained model, but does not; was the run finished, with "
            "`keep_model`?"
        )
    check_hashes(folder, RunError, "bring it back from a copy, or train anew.")
    described = read_checked(folder / "config.json")
    kind = problem.auto_class.__name__.removeprefix("AutoModel")
    named = described.get("architectures")
    made_for = named if isinstance(named, list) and named else ["nothing"]
    labels, wanted = described.get("id2label"), problem.head().get("id2label")
    if not str(made_for[0]).endswith(kind):
        raise RunError(
            f"{folder} must hold a model {kind}, but is one of {made_for[0]}: another task's "
            "weights."
        )
    if (
        wanted is not None
        and isinstance(labels, dict)
        and list(labels.values()) != list(wanted.values())
    ):
        said = ", ".join(map(str, labels.values()))
        raise RunError(
            f"{folder} must tell {', '.join(wanted.values())} apart, but tells {said}: another "
            "task's weights."
        )
    attached = NAME in described
    with reading(folder, RunError, "it is damaged: bring it back from a copy, or train anew."):
        model: nn.Module = (
            from_pretrained(problem.auto_class, folder, dtype=torch.float32)
            if attached
            else load(problem.auto_class, folder)
        )
    for name, parameter in model.named_parameters():
        if not bool(parameter.detach().isfinite().all()):
            raise RunError(
                f"{folder} must hold finite weights, but {name} is not; train anew, with a lower "
                "`training.lr`."
            )
    return model.eval()


def attachment_folder(path: Path) -> Path:
    """Where a run, or a folder that `floater.save_pretrained` wrote, holds its encoder."""
    found = path / ATTACHMENT if (path / CONFIG).is_file() else path
    if not (found / "floater_config.json").is_file():
        what = "is a run without one; was it finished?" if found != path else "is neither"
        raise RunError(
            f"`dynamics` must be a run or a folder with a trained encoder, but {path} {what}"
        )
    return found


def select_trained(model: nn.Module, part: str) -> None:
    """Freeze what is not to be trained; see `FineTuning.part`."""
    made, base = attachment(model), base_of(model)
    if part == "all":
        return
    model.requires_grad_(False)
    if part == "head":
        kept = {
            id(parameter)
            for module in (base, made)
            if module is not None
            for parameter in module.parameters()
        }
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) not in kept)
    elif made is not None and part == "flow":
        made.requires_grad_(True)
    elif made is not None and part == "start":
        for encoder in made.encoders.values():
            if not isinstance(encoder, Flow):
                raise ConfigError(
                    "`part: start` trains p(start) of a flow, but the encoder is a "
                    f"{type(encoder).__name__}."
                )
            encoder.initial.requires_grad_(True)


def lacks_head(auto_class: Any, where: str) -> bool:
    """Whether a checkpoint has no weights for the head of a class."""
    model, info = load(auto_class, where, output_loading_info=True)
    inside = f"{model.base_model_prefix}."
    return any(not name.startswith(inside) for name in info["missing_keys"])


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Counts for a run's record: all, those that train, and those of the encoder."""
    made = attachment(model)
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "trained_parameters": sum(one.numel() for one in model.parameters() if one.requires_grad),
        "position_parameters": 0 if made is None else made.num_parameters(),
    }


def resolve(config: UnderstandingConfig) -> UnderstandingConfig:
    """The config with the positions of its dynamics, and a `max_length` that the model's own
    positions, if kept, allow.
    """
    if config.dynamics is not None:
        config = config.model_copy(
            update={"positions": _positions(config, attachment_folder(config.dynamics))}
        )
    if config.positions.encoder is not None and config.positions.own == "replace":
        return config
    where = locate(config.model.name)
    with reading(
        f"The config of {where}", ConfigError, "check its config.json, or give another model."
    ):
        known: Any = AutoConfig.from_pretrained(where, trust_remote_code=False)
    rows = getattr(known, "max_position_embeddings", config.max_length)
    first = (
        known.pad_token_id + 1 if known.model_type in ("roberta", "xlm-roberta") else 0
    )  # they count from there
    return config.model_copy(update={"max_length": min(config.max_length, int(rows) - first)})


def _positions(config: UnderstandingConfig, folder: Path) -> UnderstandingPositions:
    found = read_checked(folder / "floater_config.json")
    if not {"encoder", "sites", "positions"} <= found.keys():
        raise RunError(
            f"{folder / 'floater_config.json'} must describe an encoder, but does not; it is "
            "damaged."
        )
    theirs = UnderstandingPositions(
        encoder=found["encoder"], sites=found["sites"], own=found["positions"]
    )
    if "positions" in config.model_fields_set and config.positions != theirs:
        raise ConfigError(
            f"`positions` must be those of {config.dynamics}, but differ from them; leave "
            "`positions` out to take them over."
        )
    return theirs


def _dropout(config: UnderstandingConfig, where: str) -> dict[str, float]:
    """Dropout of hidden states and attention, as the model's own config calls it."""
    share = config.model.dropout
    if share is None:
        return {}
    known = AutoConfig.from_pretrained(where, trust_remote_code=False)
    return {name: share for name in _DROPOUTS if hasattr(known, name)}
