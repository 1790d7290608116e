"""Prepare a masked LM of antibodies and its data for configs/mlm/antiberty.yaml.

    python tools/antibodies.py --out data/antiberty

The weights are in the wheel of the PyPI package antiberty 0.1.3 (97 MB, MIT; a pickle, read with
`weights_only`). The sequences are 50,000 variable domains of human heavy chains, a test set of the
AbNatiV paper, in the wheel of abnativ 2.0.9 (30 MB, CC BY-NC-SA 4.0: not for commercial use). By
default both are downloaded with pip. The output is a model folder that `transformers` loads
(safetensors and a tokenizer) and text files with one amino-acid sequence per line.

Sequences with the same third loop (CDR3), the part that differs most between antibodies, are either
all trained on or all held out. AntiBERTy was itself trained on hundreds of millions of such
sequences, so it may know some that are held out here.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
import zlib
from pathlib import Path

from failing import fail
from floater.errors import first_line
from masked_lms import Lines, Model, masked_lm, prepare

WEIGHTS = ("antiberty==0.1.3", "antiberty-0.1.3-py3-none-any.whl", "antiberty/trained_models")
SEQUENCES = (
    "abnativ==2.0.9",
    "abnativ-2.0.9-py3-none-any.whl",
    "abnativ/model/percentiles/test_vh_v2_abnativ_seq_scores.csv",
)
FILES = (
    "AntiBERTy_md_smooth/config.json",
    "AntiBERTy_md_smooth/pytorch_model.bin",
    "vocab.txt",
)
UNUSED = ("position_ids", "pooler", "cls.species", "cls.chain", "cls.graft")
"""Parts of the names of weights that a masked LM does not have."""
AMINO_ACIDS = frozenset("ACDEFGHIKLMNPQRSTVWY")
ALIGNED = 149
"""Positions of an aligned sequence, in the AHo numbering."""
LOOP = slice(106, 138)
"""The third loop of an aligned sequence."""
PARTS = 50
"""One part of so many is held out."""


def main() -> None:
    prepare(__doc__, "data/antiberty", (WEIGHTS, SEQUENCES), (model_of, antibodies), "antibodies")


def model_of(wheel: Path) -> Model:
    """Read the masked LM and its tokenizer, with one token per amino acid, from the wheel."""
    return masked_lm(wheel, WEIGHTS[1], [f"{WEIGHTS[2]}/{file}" for file in FILES], UNUSED, ".")


def antibodies(archive: Path) -> Lines:
    """Read the training and the held-out sequences, without duplicates."""
    try:
        with zipfile.ZipFile(archive) as packed:
            text = packed.read(SEQUENCES[2]).decode("utf-8")
    except (zipfile.BadZipFile, zlib.error, KeyError, OSError, UnicodeDecodeError) as error:
        fail(
            f"{archive} must be the wheel {SEQUENCES[1]}, but is not ({first_line(error)}); leave "
            "--archive out to download it."
        )
    loops: dict[str, str] = {}
    for row in csv.DictReader(io.StringIO(text, newline="")):
        sequence, aligned = row.get("input_seq") or "", row.get("aligned_seq") or ""
        if (
            not sequence
            or not set(sequence) <= AMINO_ACIDS
            or len(aligned) != ALIGNED
            or aligned.replace("-", "") != sequence
        ):
            loops.clear()
            break
        loops[sequence] = aligned[LOOP].replace("-", "")
    train = [sequence for sequence, loop in loops.items() if not is_held_out(loop)]
    held_out = [sequence for sequence, loop in loops.items() if is_held_out(loop)]
    if not train or not held_out:
        fail(
            f"{SEQUENCES[2]} in {archive} must be a table of antibodies with the columns input_seq "
            f"(amino acids) and aligned_seq (the same with gaps, {ALIGNED} characters), but is not."
        )
    return train, held_out


def is_held_out(loop: str) -> bool:
    """Whether the sequences with this third loop are held out."""
    return int.from_bytes(hashlib.sha256(loop.encode("ascii")).digest()) % PARTS == 0


if __name__ == "__main__":
    main()
