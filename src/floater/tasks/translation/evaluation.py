"""Trained translation runs: averaging, loading, scoring, comparing."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from transformers.utils import logging

from ...attachments import from_pretrained, save_pretrained
from ...errors import ArgumentError, DataError, RunError
from ...files import (
    HASHES,
    check_hashes,
    file_hash,
    new_folder,
    reading,
    record_hashes,
    sync,
    write_text,
)
from ...training.average import average
from ...training.extract_encodings import record_positions
from ...training.locking import in_use
from ...training.records import RunFolder, read_facts
from ...training.trainer import GO_BACK
from . import corpus, vocabulary
from .config import TranslationConfig
from .corpus import Pairs
from .decoding import Translator
from .model import MarianMTModel
from .preparing import settings
from .scoring import bins, paired_bootstrap, paper_bleu, score

AVERAGED = "averaged.json"
"""File of a model that `floater average --out` wrote: of which run, and of which checkpoints."""


def average_run(folder: RunFolder, chosen: Sequence[Path], out: Path | None = None) -> Path:
    """Write the mean of some checkpoints as a model; the run's own unless `out` says where."""
    with in_use(folder.path, "average"):
        place = out or folder.model
        names = [path.name for path in chosen]
        record = {"format": 1, "run": folder.identity(), "checkpoints": names}
        if out is not None:
            _check_ours(out, record)
        logging.disable_progress_bar()
        weights = average(chosen)
        with reading(chosen[-1], RunError, GO_BACK):
            model = from_pretrained(MarianMTModel, chosen[-1])
            missing = model.load_state_dict(weights, strict=False).missing_keys
        odd = [
            name
            for name in missing
            if "embed_" not in name
            and name != "lm_head.weight"
            and not name.endswith("logits_bias")
        ]
        if odd:
            raise RunError(f"{chosen[-1]} does not hold {odd[0]}.")
        model.tie_weights()
        with new_folder(place) as aside:
            save_pretrained(model, aside)
            if out is not None:
                write_text(aside / AVERAGED, json.dumps(record, indent=2) + "\n")
            record_hashes(aside)
            sync(aside)
            if out is None and folder.facts().get("averaged") != names:
                folder.retire_scores()  # not before all else is safely written
        if out is None:
            folder.note(averaged=names)
            record_positions(folder)
        return place


def _check_ours(out: Path, record: dict[str, Any]) -> None:
    """Refuse to put an averaged model in the place of anything but an earlier one of the same
    run.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir() or not (out / AVERAGED).is_file():
        raise RunError(
            f"{out} exists and is not an averaged model of this run; choose a new folder."
        )
    found = read_facts(out / AVERAGED)
    if found.get("run") != record["run"]:
        raise RunError(
            f"{out} exists and is an averaged model of another run; choose a new folder."
        )
    recorded = read_facts(out / HASHES).get("sha256")
    known = {*(recorded if isinstance(recorded, dict) else ()), HASHES, "README.md"}
    others = sorted(path.name for path in out.iterdir() if path.name not in known)
    if others:
        raise RunError(
            f"{out} is an averaged model, but holds {others[0]} too, which would be lost; choose a "
            "new folder."
        )


def load(path: Path, model: Path | None = None) -> tuple[TranslationConfig, Translator]:
    """A trained run, ready to translate; with the weights of `model` (see `average_run`) instead of
    its own if given.
    """
    config, folder = settings(path)
    if model is not None and not model.is_dir():
        raise RunError(f"{model} must be the folder of a model, but there is none.")
    if model is None and not folder.model.is_dir():
        raise RunError(
            f"{path} holds no model yet; finish it with `floater train … --resume`, or `floater "
            f"average {path}`."
        )
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # a position past 1,024 is none to warn of
    place = model or folder.model
    check_hashes(place, RunError, f"make it anew with `floater average {path}`.")
    with reading(place, RunError, f"make it anew with `floater average {path}`."):
        trained = from_pretrained(MarianMTModel, place)
    trained.eval()
    return config, Translator(trained, vocabulary.load(folder.vocabulary), config.decoding)


def test_pairs(config: TranslationConfig, folder: RunFolder) -> Pairs | None:
    """The test set of a run, without sources that are shorter than its config wants; None if it
    names none.
    """
    found = corpus.load(config.data, "test")
    shortest = config.data.min_test_tokens
    if found is None or not shortest:
        return found
    lengths = map(len, vocabulary.load(folder.vocabulary).encode(found.source))
    kept = [pair for pair, length in zip(found, lengths, strict=True) if length >= shortest]
    if not kept:
        raise DataError(
            f"No test source has {shortest} tokens or more; lower `min_test_tokens` of `data`."
        )
    return Pairs(
        [source for source, _ in kept],
        [target for _, target in kept],
        f"{found.name}, {shortest} tokens and more",
    )


def evaluate(
    folder: RunFolder,
    pairs: Pairs,
    *,
    name: str,
    edges: Sequence[int] = (),
    paper: bool = False,
    beam: int | None = None,
    model: Path | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Translate and score; predictions and scores stay in the run folder.

    Args:
        folder: the run.
        pairs: what to translate, with references.
        name: under which predictions and scores are kept.
        edges: edges of bins of source length, in tokens.
        paper: BLEU as the paper computes it, beside sacreBLEU's.
        beam: width of the beam; the config's unless given.
        model: a folder of other weights than the run's.
        console: where to show a bar.
    """
    if Path(name).name != name or name.startswith("."):
        raise ArgumentError(f"`name` must be a plain name, without folders, but is {name!r}.")
    if edges:
        bins([], edges)  # wrong ones are refused before any work
    with in_use(folder.path, "evaluate", alone=False):
        folder.scores()  # damaged ones are refused before any work
        config, translator = load(folder.path, model)
        begun = time.perf_counter()
        with Progress(console=console or Console(stderr=True), transient=True) as bar:
            task = bar.add_task("translating", total=len(pairs))
            found = translator.translate(
                pairs.source, beam=beam, done=lambda lines: bar.advance(task, lines)
            )
        scores: dict[str, Any] = {
            key: value.as_dict() for key, value in score(found, pairs.target).items()
        }
        if paper:
            scores["paper_bleu"] = paper_bleu(found, pairs.target).as_dict()
        scores |= {
            "pairs": len(pairs),
            "beam": beam or config.decoding.beam,
            "length_penalty": config.decoding.length_penalty,
            "seconds": round(time.perf_counter() - begun, 1),
            "data": pairs.fingerprint(),
        }
        if edges:
            lengths = [len(row) for row in translator.vocabulary.encode(pairs.source)]
            scores["bins"] = {
                label: _binned(numbers, found, pairs.target)
                for label, numbers in bins(lengths, edges).items()
            }
        folder.add_scores(name, scores, lambda: _keep(folder, name, scores, found, pairs.target))
    return scores


def _keep(
    folder: RunFolder,
    name: str,
    scores: dict[str, Any],
    found: Sequence[str],
    references: Sequence[str],
) -> None:
    """Write predictions and references, and what they hash to into their scores."""
    scores["sha256"] = {}
    for path, lines in ((f"{name}.txt", found), (f"{name}.ref.txt", references)):
        write_text(folder.predictions / path, "".join(f"{line}\n" for line in lines))
        scores["sha256"][path] = file_hash(folder.predictions / path)


def _binned(
    numbers: Sequence[int], found: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    if not numbers:
        return {"pairs": 0}
    scored = score([found[i] for i in numbers], [references[i] for i in numbers])
    return {"pairs": len(numbers), **{key: value.as_dict() for key, value in scored.items()}}


def compare(base: RunFolder, other: RunFolder, name: str) -> dict[str, Any]:
    """Paired bootstrap of two runs on predictions that both made under one name."""
    texts, references = (
        [_kept(folder, f"{name}{end}", name) for folder in (base, other)]
        for end in (".txt", ".ref.txt")
    )
    if references[0] != references[1]:
        raise RunError(
            f"{base.path} and {other.path} were evaluated on different references under the name "
            f"{name!r}."
        )
    return dict(vars(paired_bootstrap(texts[0], texts[1], references[0])))


def _kept(folder: RunFolder, file: str, name: str) -> list[str]:
    """The lines of a file beside scores, as they were when the scores were made."""
    path, again = (
        folder.predictions / file,
        f"run `floater evaluate {folder.path} --name {name}` (again).",
    )
    if not path.is_file():
        raise RunError(f"{folder.path} has no predictions for {name!r}; {again}")
    recorded = folder.scored(name).get("sha256")
    if isinstance(recorded, dict) and recorded.get(file) != file_hash(path):
        raise RunError(
            f"{path} is damaged or was changed after it was scored: its hash is not the recorded "
            f"one; {again}"
        )
    with reading(path, RunError, again):
        return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")


def describe(scores: dict[str, Any]) -> str:
    """Scores in words."""
    lines = []
    for key, label in (
        ("bleu", "BLEU"),
        ("chrf", "chrF"),
        ("exact", "exact match"),
        ("paper_bleu", "paper's BLEU"),
    ):
        if key in scores:
            found = scores[key]
            more = f" ± {found['interval']:.2f}" if found["interval"] is not None else ""
            lines.append(f"{label} {found['score']:.2f}{more}  ({found['signature']})")
    for label, part in scores.get("bins", {}).items():
        value = "no sentence"
        if part["pairs"]:
            bleu, chrf, exact = (part[key]["score"] for key in ("bleu", "chrf", "exact"))
            value = f"BLEU {bleu:.2f}, chrF {chrf:.2f}, exact match {exact:.1f} %"
        lines.append(f"  {label} tokens: {part['pairs']} sentences, {value}")
    return "\n".join(lines)
