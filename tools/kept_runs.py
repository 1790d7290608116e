"""Keep the scores and predictions of translation runs without their weights, and restore them.

    python tools/kept_runs.py keep reproductions/s2l-small docs/records/s2l-4000
    python tools/kept_runs.py restore docs/records/s2l-4000 reproductions/s2l-small

`keep` copies config, facts, metrics, scores and predictions (compressed) of all finished runs in a
folder. It leaves out the references, which are the user's data. `restore` writes run folders again,
with references read from the data that the config names, so that `floater reproduce s2l` takes them
as finished runs and trains only what is missing. Runs that are already there stay as they are.
"""

from __future__ import annotations

import argparse
import lzma
import shlex
from collections.abc import Sequence
from pathlib import Path

from failing import fail
from floater.errors import FloaterError, RunError
from floater.files import file_hash, new_folder, reading, write_bytes, write_text
from floater.runs.folder import CONFIG, METRICS, RUN, RunFolder
from floater.runs.scores import SCORES
from floater.tasks.translation import corpus
from floater.tasks.translation.config import TranslationConfig
from floater.tasks.translation.preparing import long_enough, vocabulary_of

FILES = (CONFIG, RUN, METRICS, SCORES)
PREDICTIONS, REFERENCES, PACKED = "test.txt", "test.ref.txt", "test.txt.xz"


def keep(runs: Path, records: Path) -> list[str]:
    """Copy what is worth keeping of all finished runs; return their names."""
    names = []
    for path in sorted(runs.iterdir()):
        run = RunFolder(path)
        if not run.started() or not run.finished() or (records / path.name).exists():
            continue
        with new_folder(records / path.name) as temporary:
            for name in FILES:
                write_bytes(temporary / name, (path / name).read_bytes())
            kept = RunFolder(temporary)
            kept.note(commands=[_without_out(command) for command in kept.facts()["commands"]])
            with reading(run.predictions, RunError, "is this a translation run with a test set?"):
                predictions = (run.predictions / PREDICTIONS).read_bytes()
            write_bytes(temporary / PACKED, lzma.compress(predictions, preset=9))
        names.append(path.name)
    return names


def _without_out(command: str) -> str:
    """A command without the folder of its results, which is one of this machine."""
    words = shlex.split(command)
    places = [number for number, word in enumerate(words) if word == "--out"]
    left = [word for number, word in enumerate(words) if number - 1 not in places]
    return shlex.join(word for word in left if word != "--out" and not word.startswith("--out="))


def restore(records: Path, runs: Path) -> list[str]:
    """Write run folders again from what was kept; return their names."""
    names = []
    for path in sorted(records.iterdir()):
        if not (path / PACKED).is_file() or (runs / path.name).exists():
            continue
        with new_folder(runs / path.name) as temporary:
            for name in FILES:
                write_bytes(temporary / name, (path / name).read_bytes())
            run = RunFolder(temporary)
            with reading(path / PACKED, RunError, "keep the run again."):
                predictions = lzma.decompress((path / PACKED).read_bytes()).decode("utf-8")
            write_text(run.predictions / PREDICTIONS, predictions)
            write_text(run.predictions / REFERENCES, _references(run))
            known = run.scores().sets["test"].files
            if any(file_hash(run.predictions / name) != known[name] for name in known):
                raise RunError(f"{path} was scored on other files than those of its config today.")
        names.append(path.name)
    return names


def _references(run: RunFolder) -> str:
    config = TranslationConfig(**run.settings())
    test = corpus.load(config.data, "test")
    if config.data.min_test_tokens:
        test = long_enough(test, vocabulary_of(run, config), config.data.min_test_tokens)
    assert test is not None
    return "".join(f"{line}\n" for line in test.target)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("keep", "restore"))
    parser.add_argument("source", type=Path, help="folder of runs, or of records")
    parser.add_argument("target", type=Path, help="where to write")
    arguments = parser.parse_args(given)
    if not arguments.source.is_dir():
        fail(f"{arguments.source} must be a folder, but is not.")
    action = keep if arguments.action == "keep" else restore
    try:
        names = action(arguments.source, arguments.target)
    except FloaterError as error:
        fail(str(error))
    print(f"{arguments.action}: {len(names)} runs in {arguments.target}: {', '.join(names)}")


if __name__ == "__main__":
    main()
