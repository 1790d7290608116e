"""Pretrained models: locating and loading them, attaching a position encoder, and choosing which
weights are trained.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from ...attachments import attachment, from_pretrained
from ...attachments.context import NAME
from ...attachments.layouts import base_of, position_limit
from ...attachments.loading import quiet
from ...config import saved_encoder
from ...encoders import Flow, FlowConfig, TableFlowConfig
from ...errors import ConfigError, RunError
from ...files import check_hashes, reading
from ...runs.checked_json import read_checked
from ...runs.folder import CONFIG, RunFolder
from .config import UnderstandingConfig, UnderstandingPositions
from .problem import Problem

ATTACHMENT = "attachment"
"""Folder of a run that holds its encoder alone."""
_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"),
    *("resid_pdrop", "embd_pdrop", "attn_pdrop"),
)
_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")


def locate(name: str) -> str:
    """The folder or hub name of a model.

    `pip:package/folder` is a folder inside an installed package, which is not imported.
    """
    if name.startswith("pip:"):
        package, _, inside = name.removeprefix("pip:").partition("/")
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(
                f"`name` of `model` must name an installed package, but {package!r} is not one; "
                "see requirements-models.txt."
            )
        folder = Path(spec.submodule_search_locations[0]) / inside
    else:
        folder = Path(name)
        if not folder.is_dir() and _HUB.fullmatch(name) and not name.startswith("."):
            return name
    if (folder / "floater_config.json").is_file():
        raise ConfigError(
            f"`name` of `model` must be a model without a FLOATER encoder, but {name} has one; "
            "give its base model, and the encoder as `dynamics`."
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(
            "`name` of `model` must be a folder with a config.json, a name on the hub or "
            f"pip:package/folder, but {name} is none of them."
        )
    return str(folder)


def load_tokenizer(where: str, *, pads: bool = True) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, which must be fast.

    Args:
        where: folder or hub name of the model.
        pads: whether it must have a padding token.
    """
    with reading(
        f"The tokenizer of {where}",
        ConfigError,
        "check the files of the folder, or give another model.",
    ):
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    if (
        not isinstance(tokenizer, PreTrainedTokenizerBase)
        or not tokenizer.is_fast
        or (pads and tokenizer.pad_token_id is None)
    ):
        needed = " with a padding token" if pads else ""
        raise ConfigError(
            f"The tokenizer of {where} must be a fast one{needed}, but is a "
            f"{type(tokenizer).__name__}."
        )
    return tokenizer


def build(problem: Problem[Any, Any], where: str) -> nn.Module:
    """Build the model at the start of training.

    A new head gets the same random weights with and without a position encoder.
    """
    config: Any = problem.config
    settings = {**problem.head(), **_dropout(config, where)}
    if config.dynamics is not None:
        model: nn.Module = from_pretrained(
            problem.auto_class,
            attachment_folder(config.dynamics),
            base=where,
            dtype=torch.float32,
            **settings,
        )
        _continue_training(model, config)
        return model
    model = load(problem.auto_class, where, **settings)
    config.positions.attach(model)
    return model


def _continue_training(model: nn.Module, config: UnderstandingConfig) -> None:
    """Take over the settings that may differ from those of trained dynamics. Where these were saved
    before their range was recorded, it is that of their run.
    """
    attached = attachment(model)
    assert attached is not None
    assert config.dynamics is not None
    longest = RunFolder(config.dynamics).facts().get("longest")
    if not attached.trained_range and isinstance(longest, int) and longest > 0:
        attached.trained_range = attached.delta * (longest - 1)
    attached.beyond = config.positions.beyond


def load(auto_class: Any, where: str | Path, **settings: Any) -> Any:
    """Load a pretrained model in float32, from safetensors."""
    with quiet():
        advice = "it must hold weights in safetensors of the class that the task needs."
        with reading(f"The model {where}", ConfigError, advice):
            safe = {"use_safetensors": True, "trust_remote_code": False}
            return auto_class.from_pretrained(str(where), dtype=torch.float32, **safe, **settings)


def load_trained(problem: Problem[Any, Any], folder: Path) -> nn.Module:
    """Load the saved model of a run, or one of its checkpoints, with its encoder if it has one.

    Args:
        problem: the run's task.
        folder: of the model or checkpoint.

    Returns:
        The model in eval mode.
    """
    if not (folder / "config.json").is_file():
        raise RunError(
            f"{folder} must hold a trained model, but does not; was the run finished, with "
            "`keep_model`?"
        )
    check_hashes(folder, RunError, "restore a copy, or train again.")
    settings = read_checked(folder / "config.json")
    _check_head(problem, folder, settings)
    with reading(folder, RunError, "it is damaged: restore a copy, or train again."):
        model: nn.Module = (
            from_pretrained(problem.auto_class, folder, dtype=torch.float32)
            if NAME in settings
            else load(problem.auto_class, folder)
        )
    for name, parameter in model.named_parameters():
        if not bool(parameter.detach().isfinite().all()):
            raise RunError(
                f"{folder} must hold finite weights, but {name} is not; train again, with a lower "
                "`training.lr`."
            )
    return model.eval()


def _check_head(problem: Problem[Any, Any], folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a model that was trained for another task."""
    head = problem.auto_class.__name__.removeprefix("AutoModel")
    classes = settings.get("architectures")
    class_name = str(classes[0]) if isinstance(classes, list) and classes else "no class"
    names = (head, "LMHeadModel") if head == "ForCausalLM" else (head,)  # such as GPT2LMHeadModel
    if not class_name.endswith(names):
        raise RunError(
            f"{folder} must hold a model {head}, but holds one of {class_name}: the weights of "
            "another task."
        )
    labels, expected = settings.get("id2label"), problem.head().get("id2label")
    if (
        expected is not None
        and isinstance(labels, dict)
        and list(labels.values()) != list(expected.values())
    ):
        raise RunError(
            f"{folder} must predict the labels {', '.join(expected.values())}, but predicts "
            f"{', '.join(map(str, labels.values()))}: the weights of another task."
        )


def attachment_folder(path: Path) -> Path:
    """The folder with the encoder of a run, or of what `floater.save_pretrained` wrote."""
    folder = path / ATTACHMENT if (path / CONFIG).is_file() else path
    if not (folder / "floater_config.json").is_file():
        what = "is a run without one; was it finished?" if folder != path else "is neither."
        raise RunError(
            f"`dynamics` must be a run or a folder with a trained encoder, but {path} {what}"
        )
    return folder


def select_trained(model: nn.Module, part: str) -> None:
    """Freeze the weights that are not trained; see `FineTuning.part`."""
    attached, base = attachment(model), base_of(model)
    if part == "all":
        return
    model.requires_grad_(False)
    if part == "head":
        frozen = {
            id(parameter)
            for module in (base, attached)
            if module is not None
            for parameter in module.parameters()
        }
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) not in frozen)
    elif attached is not None and part == "flow":
        attached.requires_grad_(True)
    elif attached is not None and part == "start":
        for encoder in attached.encoders.values():
            if not isinstance(encoder, Flow):
                raise ConfigError(
                    "`part: start` trains p(start) of a flow, but the encoder is a "
                    f"{type(encoder).__name__}."
                )
            encoder.initial.requires_grad_(True)


def load_and_find_head(auto_class: Any, where: str) -> tuple[Any, bool]:
    """Load a pretrained model; also returns whether its checkpoint has weights for the head."""
    model, info = load(auto_class, where, output_loading_info=True)
    inside = f"{model.base_model_prefix}."
    return model, all(name.startswith(inside) for name in info["missing_keys"])


def lacks_head(auto_class: Any, where: str) -> bool:
    """Whether a checkpoint has no weights for the head of an Auto class."""
    return not load_and_find_head(auto_class, where)[1]


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Parameter counts for the run's record: all, trained, and of the position encoder."""
    attached, weights = attachment(model), list(model.parameters())
    return {
        "parameters": sum(weight.numel() for weight in weights),
        "trained_parameters": sum(weight.numel() for weight in weights if weight.requires_grad),
        "position_parameters": 0 if attached is None else attached.num_parameters(),
    }


def resolve(config: UnderstandingConfig) -> UnderstandingConfig:
    """Fill in `positions` from `dynamics`, and limit `max_length` to the model's built-in
    positions if they are kept.
    """
    if config.dynamics is not None:
        config = config.model_copy(
            update={"positions": _positions(config, attachment_folder(config.dynamics))}
        )
    if config.positions.encoder is not None and (
        config.positions.own == "replace"
        or config.positions.sites.kind == "table"
        or config.positions.table is not None
    ):
        return config
    limit = position_limit(settings_of(config.model.name))
    return (
        config
        if limit is None
        else config.model_copy(update={"max_length": min(config.max_length, limit)})
    )


def settings_of(name: str) -> Any:
    """The config of a pretrained model."""
    where = locate(name)
    with reading(
        f"The config of {where}", ConfigError, "check its config.json, or give another model."
    ):
        return AutoConfig.from_pretrained(where, trust_remote_code=False)


def check_lengths(config: UnderstandingConfig, lengths: Mapping[str, int]) -> None:
    """Refuse inputs that a model has no positions for.

    Args:
        config: of the run.
        lengths: the longest inputs by the name of the setting.
    """
    limit = _limit(config.model.name, config.positions)
    for name, longest in lengths.items():
        if limit is not None and longest > limit:
            raise ConfigError(
                f"{config.model.name} must have positions for {longest} tokens ({name}), but has "
                f"{limit}; read less, or extend its table further (positions: {{sites: table, "
                "encoder: {kind: table, factor: …}})."
            )


def _limit(name: str, positions: UnderstandingPositions) -> int | None:
    """The number of positions of a model with its encoder; None if there is no limit."""
    if positions.encoder is not None and positions.own == "replace":
        return None
    limit = position_limit(settings_of(name))
    encoder = positions.encoder
    table = encoder if isinstance(encoder, TableFlowConfig) else positions.table
    if table is None or limit is None:
        return limit
    return math.ceil(table.factor * (table.length or limit))


def _positions(config: UnderstandingConfig, folder: Path) -> UnderstandingPositions:
    saved = read_checked(folder / "floater_config.json")
    if not {"encoder", "sites", "positions"} <= saved.keys():
        raise RunError(
            f"{folder / 'floater_config.json'} must describe an encoder, but does not; it is "
            "damaged."
        )
    encoder: Any = saved["encoder"]
    if isinstance(encoder, dict):
        encoder = saved_encoder(encoder)
    theirs = UnderstandingPositions(
        encoder=encoder,
        rotary=saved.get("rotary"),
        phases=saved.get("phases"),
        table=saved.get("table"),
        sites=saved["sites"],
        own=saved["positions"],
        beyond=config.positions.beyond,
    )
    ours = config.positions
    if isinstance(theirs.encoder, FlowConfig) and ours.encoder is not None:
        # what they took over from their model
        fitted = ours.encoder.fitted(theirs.encoder.length)
        ours = ours.model_copy(update={"encoder": fitted})
    if "positions" in config.model_fields_set and ours != theirs:
        raise ConfigError(
            f"`positions` must be those of {config.dynamics}, but differ from them; leave "
            "`positions` out to use the same ones."
        )
    return theirs


def _dropout(config: UnderstandingConfig, where: str) -> dict[str, float]:
    """The dropout settings under the names that the model's config uses."""
    share = config.model.dropout
    if share is None:
        return {}
    model_config = AutoConfig.from_pretrained(where, trust_remote_code=False)
    return {name: share for name in _DROPOUTS if hasattr(model_config, name)}
