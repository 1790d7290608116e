"""Write docs/models.md, the table of known architectures, from the table of layouts.

    python tools/model_table.py [--check]

With --check nothing is written, and a page that does not match the code ends with exit code 1.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from itertools import takewhile
from pathlib import Path

from floater.attachments.layouts import LAYOUTS, Layout, StackLayout
from floater.files import write_text

PAGE = Path(__file__).parents[1] / "docs" / "models.md"

_KINDS = {
    "learned": "table",
    "sinusoidal": "sinusoid",
    "growing": "sinusoid",
    "parameter": "table",
    "rotary": "rotary",
    "convolution": "convolution",
}
_NUMBERING = {
    "position_ids": "`position_ids`, else consecutive",
    "mask": "`position_ids`, else the attention mask",
    "padding": "tokens that are not padding",
    "consecutive": "consecutive",
    "hidden_states": "all hidden states",
}
_KEPT = {
    "learned": "up to the end of the table",
    "sinusoidal": "any length (the sinusoid is extended)",
    "growing": "any length",
    "parameter": "any size, with `interpolate_pos_encoding`",
    "rotary": "any length",
    "convolution": "any length",
    "none": "any length",
}
_REPLACED = {
    "learned": "zeros, any length",
    "sinusoidal": "zeros",
    "growing": "zeros",
    "parameter": "zeros, any size",
    "rotary": "no rotation",
    "convolution": "zeros",
    "none": "",
}
_INTRODUCTION = """# Models

`floater.attach` knows these architectures (`model.config.model_type`) by name. Any other model of
blocks with linear projections works by path pattern, `floater.Sites(kind, targets={…})`; see
[attach.md](attach.md).

*Projections* are the layers that take a bias at `sites="qkv"`; "fused" is one layer for q, k and v.
*Numbered by* says which position a token gets. `positions="keep"` leaves the model's built-in
positions and adds to them; `"replace"` takes them out: a table or sinusoid becomes zero, rotary
angles become zero, a bias by distance is no longer added.

"""
_NOTES = """
- **Grouped queries.** Encodings have the size of k. The heads of q that share a head of k share an
  encoding, so that one dynamics serves all sites.
- **Heads that are normalised** (qwen3, gemma3_text): the bias enters before the normalisation, as a
  bias of the projection would. `RotaryConfig()` is refused there, because it would have to rotate
  after it.
- **Projections without a bias** (llama, t5 …) take the encoding within their matrix product, like
  those that have one.
- **Whisper** keeps its fixed length of audio, also with `"replace"`: its encoder itself checks it.
  `floater.extend` makes it a longer one.
- **Longer inputs.** `floater.extend` leads rotary models (`sites="phases"`) past the length they
  were trained on, and models with a table (`sites="table"`; not ViT, and DeBERTa without one) past
  its last row.
{relative}
- **Refused, with a reason:** a rotary encoder in a rotary model that keeps its own; codegen's fused
  projection; re-entrant gradient checkpointing; adapters that scale the output of a projection.

## Tested how

A tiny random model of each row (`tests/attachments`) is checked for all of this:

| check | where |
|---|---|
| a fresh flow changes nothing, to the bit (float32, bfloat16, training) | `test_unchanged.py` |
| every site gets its own encoding, against hooks written by hand (1e-9) | `test_sites.py` |
| detaching and disabling restore the model, to the bit | `test_unchanged.py` |
| a sequence alone equals itself, padded behind in a batch (text models) | `test_positions.py` |
| decoding with a cache equals the full forward pass (models that generate) | `test_generation.py` |
| replaced positions are gone: tokens in another order give the same (1) | `test_any_model.py` |
| saved and loaded, equal to the bit | `test_any_model.py` |
| relative positions, where they are served: zero vectors, padding, caches | `test_relative.py` |
| phases of rotary models: fresh, against phases by hand, caches | `test_phases.py` |
| longer tables: fresh, against tables by hand, merged | `test_tables.py`, `test_whisper.py` |
| copied, pickled, baked | `test_copies_and_baking.py`, `test_threads.py` |

(1) Sliding windows (gemma, modernbert) and DeBERTa's convolution still depend on the order. With
yarn and longrope, `"replace"` also drops the factor that these apply to all angles.
"""


def page() -> str:
    """The whole page."""
    header = "| architecture | projections | built-in positions | numbered by | keep | replace |\n"
    rows = [_row(name, layout) for name, layout in sorted(LAYOUTS.items())]
    notes = _NOTES.replace("{relative}", _relative())
    return _INTRODUCTION + header + "|---|---|---|---|---|---|\n" + "".join(rows) + notes


def _relative() -> str:
    names = [name for name, layout in sorted(LAYOUTS.items()) if layout.plain_attention]
    text = (
        f"- **Relative positions** (`RelativeConfig()`) are served by {', '.join(names[:-1])} and "
        f"{names[-1]}, whose self-attention is plain and goes through transformers' attention "
        "interface, and refused elsewhere."
    )
    return textwrap.fill(text, 100, subsequent_indent="  ", break_on_hyphens=False)


def _row(name: str, layout: Layout) -> str:
    stacks = list(layout.stacks.values())
    first = stacks[0]
    cells = (
        f"**{name}**",
        _projections(stacks),
        _positions(first, layout),
        _NUMBERING[layout.numbering],
        _KEPT[first.positions_kind],
        _REPLACED[first.positions_kind] if not first.relative else "no bias, any length",
    )
    return "| " + " | ".join(cells) + " |\n"


def _projections(stacks: list[StackLayout]) -> str:
    paths = list(stacks[0].attention.values())
    start = _common_start(paths)
    end = _common_start([path[len(start) :][::-1] for path in paths])[::-1]
    varying = [path[len(start) : len(path) - len(end)] for path in paths]
    text = f"`{start}{{{','.join(varying)}}}{end}`" if len(paths) > 1 else f"`{start}`"
    if "qkv" in stacks[0].attention:
        order = "head by head" if stacks[0].fused == "heads" else "q, k, v in turn"
        text += f" (fused, {order})"
    if len(stacks) > 1:
        text += "; encoder, decoder and cross-attention"
    return text


def _common_start(words: list[str]) -> str:
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*words, strict=False))
    return "".join(letters[0] for letters in same)


def _positions(stack: StackLayout, layout: Layout) -> str:
    parts = [_KINDS[stack.positions_kind]] if stack.positions_kind != "none" else []
    if stack.relative:
        parts.append("bias by distance")
    return " and ".join(parts) + (", normalised heads" if layout.normalises_heads else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if stale")
    if not parser.parse_args().check:
        write_text(PAGE, page())
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/models.md does not match the table of layouts; run tools/model_table.py")


if __name__ == "__main__":
    main()
