"""The model card that is written beside saved weights."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from .attachment import Attachment


def model_card(model: nn.Module, made: Attachment, description: Mapping[str, Any]) -> str:
    """Markdown: what was attached, where, how large it is, and how to load it."""
    base = description["base"]
    settings = dict(description["encoder"])
    kind = settings.pop("kind")
    name = _plain(str(base["name"]))
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
| sites | {made.sites.kind}, {made.num_sites} in all |
| the model's own positions | {"kept" if made.positions == "keep" else "replaced"} |
| parameters of the encoding | {made.num_parameters():,} of {total:,} |
| baked | {f"to {made.baked_length} positions" if made.baked_length else "no"} |

```python
import floater
from transformers import {type(model).__name__}

model = floater.from_pretrained({type(model).__name__}, "path/to/this/folder"{load})
```
"""


def _plain(text: str) -> str:
    """Text that neither Markdown nor HTML takes for anything else."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]()#+!|~])", r"\\\1", html.escape(flat, quote=False))
