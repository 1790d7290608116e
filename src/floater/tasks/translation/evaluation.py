"""Trained translation runs: averaging, loading, scoring, comparing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from transformers.utils import logging

from ...attach import from_pretrained, save_pretrained
from ...errors import ArgumentError, DataError, RunError
from ...files import new_folder, write_text
from ...training.average import average
from ...training.recording import record_positions
from ...training.records import RunFolder
from . import corpus, vocabulary
from .config import TranslationConfig
from .corpus import Pairs
from .decoding import Translator
from .model import MarianMTModel
from .preparing import settings
from .scoring import bins, paired_bootstrap, paper_bleu, score


def average_run(folder: RunFolder, chosen: Sequence[Path], out: Path | None = None) -> Path:
    """Write the mean of some checkpoints as a model; the run's own unless `out` says where."""
    place = out or folder.model
    if out is not None and out.exists() and not (out / "floater_config.json").is_file() and (out.is_file() or any(out.iterdir())):
        raise RunError(f"{out} exists and is not an averaged model; choose a new folder.")
    logging.disable_progress_bar()
    weights = average(chosen)
    model = from_pretrained(MarianMTModel, chosen[-1])
    missing = model.load_state_dict(weights, strict=False).missing_keys
    odd = [name for name in missing if "embed_" not in name and name != "lm_head.weight" and not name.endswith("logits_bias")]
    if odd:
        raise RunError(f"{chosen[-1]} does not hold {odd[0]}.")
    model.tie_weights()
    names = [path.name for path in chosen]
    if out is None and folder.facts().get("averaged") != names:
        folder.forget_scores()
    with new_folder(place) as aside:
        save_pretrained(model, aside)
    if out is None:
        folder.note(averaged=names)
        record_positions(folder)
    return place


def load(path: Path, model: Path | None = None) -> tuple[TranslationConfig, Translator]:
    """A trained run, ready to translate; with the weights of `model` (see `average_run`) instead of its own if given."""
    config, folder = settings(path)
    if model is not None and not model.is_dir():
        raise RunError(f"{model} must be the folder of a model, but there is none.")
    if model is None and not folder.model.is_dir():
        raise RunError(f"{path} holds no model yet; finish it with `floater train … --resume`, or `floater average {path}`.")
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # a position past 1,024 is none to warn of
    trained = from_pretrained(MarianMTModel, model or folder.model)
    trained.eval()
    return config, Translator(trained, vocabulary.load(folder.vocabulary), config.decoding)


def test_pairs(config: TranslationConfig, folder: RunFolder) -> Pairs | None:
    """The test set of a run, without sources that are shorter than its config wants; None if it names none."""
    found = corpus.load(config.data, "test")
    shortest = config.data.min_test_tokens
    if found is None or not shortest:
        return found
    lengths = map(len, vocabulary.load(folder.vocabulary).encode(found.source))
    kept = [pair for pair, length in zip(found, lengths, strict=True) if length >= shortest]
    if not kept:
        raise DataError(f"No test source has {shortest} tokens or more; lower `min_test_tokens` of `data`.")
    return Pairs([source for source, _ in kept], [target for _, target in kept], f"{found.name}, {shortest} tokens and more")


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
    config, translator = load(folder.path, model)
    begun = time.perf_counter()
    with Progress(console=console or Console(stderr=True), transient=True) as bar:
        task = bar.add_task("translating", total=len(pairs))
        found = translator.translate(pairs.source, beam=beam, done=lambda lines: bar.advance(task, lines))
    folder.predictions.mkdir(exist_ok=True)
    write_text(folder.predictions / f"{name}.txt", "".join(f"{line}\n" for line in found))
    write_text(folder.predictions / f"{name}.ref.txt", "".join(f"{line}\n" for line in pairs.target))
    scores: dict[str, Any] = {key: value.as_dict() for key, value in score(found, pairs.target).items()}
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
        scores["bins"] = {label: _binned(numbers, found, pairs.target) for label, numbers in bins(lengths, edges).items()}
    folder.add_scores(name, scores)
    return scores


def _binned(numbers: Sequence[int], found: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    if not numbers:
        return {"pairs": 0}
    scored = score([found[i] for i in numbers], [references[i] for i in numbers])
    return {"pairs": len(numbers), **{key: value.as_dict() for key, value in scored.items()}}


def compare(base: RunFolder, other: RunFolder, name: str) -> dict[str, Any]:
    """Paired bootstrap of two runs on predictions that both made under one name."""
    texts = []
    for folder in (base, other):
        path = folder.predictions / f"{name}.txt"
        if not path.exists():
            raise RunError(f"{folder.path} has no predictions for {name!r}; run `floater evaluate {folder.path}` first.")
        texts.append(path.read_text(encoding="utf-8").splitlines())
    references = [(folder.predictions / f"{name}.ref.txt").read_text(encoding="utf-8").splitlines() for folder in (base, other)]
    if references[0] != references[1]:
        raise RunError(f"{base.path} and {other.path} were evaluated on different references under the name {name!r}.")
    return dict(vars(paired_bootstrap(texts[0], texts[1], references[0])))


def describe(scores: dict[str, Any]) -> str:
    """Scores in words."""
    lines = []
    for key, label in (("bleu", "BLEU"), ("chrf", "chrF"), ("exact", "exact match"), ("paper_bleu", "paper's BLEU")):
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
