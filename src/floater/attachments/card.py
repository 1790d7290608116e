"""The model card of a saved model."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from .attachment import Attachment


def model_card(model: nn.Module, attached: Attachment, description: Mapping[str, Any]) -> str:
    """Markdown that describes the attachment and how to load it."""
    base = description["base"]
    settings = dict(description["encoder"])
    kind = settings.pop("kind")
    name = _escape(str(base["name"]))
    load = "" if base["included"] else ', base="path/to/base"'
    total = sum(parameter.numel() for parameter in model.parameters())
    return f"""---
library_name: floater-transformers
base_model: {json.dumps(str(base["name"]))}
---

# {type(model).__name__} with a {kind} position encoding

| | |
|---|---|
| base | {name}{"" if base["included"] else " (not in this folder)"} |
| encoder | {kind}: `{json.dumps(settings)}` |
| sites | {attached.sites.kind}, {attached.num_sites} in total |
| the model's built-in positions | {"kept" if attached.positions == "keep" else "replaced"} |
| parameters of the encoding | {attached.num_parameters():,} of {total:,} |
| range of training | {_range(attached)} |
| times in training | {_jitter(attached)} |
| inputs past it | {_BEYOND[attached.beyond]} |
| baked | {f"to {attached.baked_length} positions" if attached.baked_length else "no"} |

```python
import floater
from transformers import {type(model).__name__}

model = floater.from_pretrained({type(model).__name__}, "path/to/this/folder"{load})
```
"""


_BEYOND = {
    "extrapolate": "tokens stay at index·Δ (`extrapolate`)",
    "compress": "tokens are put closer together, to stay in the range (`compress`)",
    "error": "are refused (`error`)",
}


def _range(attached: Attachment) -> str:
    """The times of training, and the number of tokens that stand at them."""
    known = attached.trained_range
    texts = [
        f"{f'{stack}: ' if len(known) > 1 else ''}times up to {time:g} "
        f"(those of {round(time / attached.delta) + 1:,} tokens)"
        for stack, time in known.items()
    ]
    return "; ".join(texts) or "unknown"


def _jitter(attached: Attachment) -> str:
    """How times were moved in training."""
    if attached.jitter is None:
        return "those of the tokens"
    return f"random: `{attached.jitter!r}`"


def _escape(text: str) -> str:
    """Escape everything that has a meaning in Markdown or HTML."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]()#+!|~])", r"\\\1", html.escape(flat, quote=False))
