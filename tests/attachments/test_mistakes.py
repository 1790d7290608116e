"""Mistakes in calls are refused with a message that names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from transformers import (
    BertModel,
    GPT2LMHeadModel,
)

import floater
from floater.errors import (
    ArgumentError,
    AttachmentError,
    ConfigError,
    FloaterError,
    LayoutError,
)

from .attach_models import MOVING, WIDTH, make


class Unknown(nn.Module):
    def __init__(self, key_width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.block(key_width) for _ in range(2))

    def block(self, key_width: int) -> nn.Module:
        block = nn.Module()
        block.attn = nn.ModuleDict({"q": nn.Linear(WIDTH, WIDTH), "k": nn.Linear(WIDTH, key_width)})
        return block


def mistake(sites: Any = "qkv", model: Any = None, config: Any = None, **settings: Any) -> None:
    floater.attach(model or make("bert"), config or floater.FlowConfig(), sites=sites, **settings)


TARGETS = {"blocks": "layers.*", "q": "layers.*.attn.q", "k": "layers.*.attn.k"}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: mistake("heads"),
            ArgumentError,
            r"`sites` must be one of 'input', 'blocks', 'qkv', 'phases', 'table', but is 'heads'",
        ),
        (
            lambda: mistake(positions="drop"),
            ArgumentError,
            r"`positions` must be 'keep' or 'replace', but is 'drop'",
        ),
        (
            lambda: mistake(indices="words"),
            ArgumentError,
            r"`indices` must be 'model' or 'mask', but is 'words'",
        ),
        (
            lambda: mistake(config="flow"),
            ArgumentError,
            r"`config` must be an encoder's config such as FlowConfig\(\)",
        ),
        (
            lambda: mistake(config=make("bert")),
            ArgumentError,
            r"such as FlowConfig\(\), but is a BertForMaskedLM\.",
        ),
        (
            lambda: mistake(model="bert-base"),
            ArgumentError,
            r"`model` must be a model, such as .*, but is 'bert-base'",
        ),
        (
            lambda: mistake(model=BertModel),
            ArgumentError,
            r"`model` must be a model, such as .*, but is <class",
        ),
        (
            lambda: mistake(floater.Sites("qkv", blocks=(9,))),
            LayoutError,
            r"between 1 and 3, but contain 9",
        ),
        (lambda: mistake(floater.Sites("qkv", stacks=("cross",))), LayoutError, r"No site matches"),
        (
            lambda: floater.Sites("input", blocks=[1]),
            ConfigError,
            (
                r'`blocks` must be left out of Sites\("input"\), .* but is \(1,\); choose blocks'
                r' with Sites\("blocks", blocks=…\)'
            ),
        ),
        (
            lambda: floater.Sites("input", projections=("q",)),
            ConfigError,
            (
                r"`projections` must be left out of Sites\('input'\), .* but is \('q',\); choose"
                r" projections with Sites\(\"qkv\""
            ),
        ),
        (
            lambda: floater.Sites("blocks", projections=("q", "k")),
            ConfigError,
            r"must be left out of Sites\('blocks'\)",
        ),
        (
            lambda: floater.Sites("blocks", stacks=("encoder", "cross")),
            ConfigError,
            r"`stacks` of .* contain 'cross'",
        ),
        (
            lambda: floater.Sites("qkv", (1,)),
            ConfigError,
            r"Sites takes .* write Sites\(kind='qkv', blocks=\(1,\)\)",
        ),
        (
            lambda: floater.Sites("qkv", block=(1,)),
            ConfigError,
            r"Sites has no key `block`; did you mean `blocks`\?",
        ),
        (
            lambda: mistake("blocks", config=floater.RotaryConfig()),
            ArgumentError,
            r"`sites` must be \"qkv\" for a rotary encoder, .* but is 'blocks'",
        ),
        (
            lambda: mistake(model=Unknown()),
            LayoutError,
            r"No layout .* None .*Candidates: layers.\*.attn.q, layers",
        ),
        (
            lambda: mistake(
                floater.Sites("qkv", targets={**TARGETS, "q": "layers.*.query"}), model=Unknown()
            ),
            LayoutError,
            (
                r"`targets\['q'\]` = 'layers.\*.query' matches no module. Candidates:"
                r" layers.\*.attn.q, layers.\*.attn.k"
            ),
        ),
        (
            lambda: mistake(
                floater.Sites("qkv", targets={**TARGETS, "q": "layers.*.attn"}), model=Unknown()
            ),
            LayoutError,
            (
                r"Projection attn of block 1 must be a linear layer \(with `out_features`\), but is"
                r" a ModuleDict"
            ),
        ),
        (
            lambda: mistake(
                floater.Sites("qkv", targets={"blocks": "layers", "q": "layers.0.attn.q"}),
                model=Unknown(),
            ),
            LayoutError,
            (
                r"`targets\['blocks'\]` = 'layers' must match blocks, but is a list of them; write"
                r" 'layers\.\*'"
            ),
        ),
        (
            lambda: mistake(
                floater.Sites("qkv", targets=TARGETS),
                model=Unknown(),
                config=floater.RotaryConfig(),
            ),
            LayoutError,
            r"config of Unknown must have num_attention_heads for a rotary encoder, but lacks it",
        ),
    ],
)
def test_mistakes_are_named(
    call: Callable[[], None], error: type[FloaterError], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_only_hugging_face_models_are_saved(tmp_path: Path) -> None:
    model = Unknown()
    floater.attach(model, MOVING, sites=floater.Sites("qkv", targets=TARGETS))
    with pytest.raises(
        AttachmentError,
        match=r"must be a Hugging Face model .*, but is a Unknown; save its state_dict\(\)",
    ):
        floater.save_pretrained(model, tmp_path)


def test_a_site_is_named_once() -> None:
    for settings in (
        {"projections": ("q", "q")},
        {"blocks": (1, 1)},
        {"stacks": ("encoder", "encoder")},
    ):
        with pytest.raises(
            ConfigError,
            match=r"of Sites must not contain duplicates, but contains .* more than once",
        ):
            floater.Sites("qkv", **settings)


def test_a_model_with_something_else_called_floater_is_left_alone() -> None:
    model = make("bert")
    model.floater = nn.Linear(2, 2)
    with pytest.raises(
        AttachmentError,
        match=r"must have no attribute `floater`, .* but has one of type Linear; rename it",
    ):
        floater.attach(model, MOVING)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert type(model.bert.encoder.layer[0].attention.self.query) is nn.Linear


def test_a_name_that_is_no_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="`model` must be a model"):
        floater.attach(GPT2LMHeadModel, MOVING)  # type: ignore[arg-type]
