"""Folders of sentence-transformers: what they hold beside a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..errors import ConfigError
from ..files import reading, write_text

_MODULES = "modules.json"
_LENGTHS = "sentence_bert_config.json"
_SETTINGS = ("config_sentence_transformers.json", _LENGTHS)


def copy_sentence_transformers(source: Path, target: Path, length: int) -> None:
    """Copy what makes a folder one of sentence-transformers, with another length of inputs.

    Args:
        source: folder of the original model; nothing is copied if it is not such a folder.
        target: folder of the new model.
        length: tokens of the longest inputs.
    """
    if not (source / _MODULES).is_file():
        return
    with reading(source / _MODULES, ConfigError, "it is damaged: restore a copy."):
        modules = json.loads((source / _MODULES).read_text(encoding="utf-8"))
        folders = [str(module.get("path", "")) for module in modules]
    for name in (_MODULES, *_SETTINGS):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    for name in folders:
        if not name or Path(name).is_absolute() or ".." in Path(name).parts:
            continue
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        else:
            (target / name).mkdir(parents=True)  # a module without settings
    lengths = {"max_seq_length": length}
    if (source / _LENGTHS).is_file():
        with reading(source / _LENGTHS, ConfigError, "it is damaged: restore a copy."):
            lengths = json.loads((source / _LENGTHS).read_text(encoding="utf-8")) | lengths
    write_text(target / _LENGTHS, json.dumps(lengths, indent=2) + "\n")
