"""Trained translation runs: loading, translating test sets, scoring, comparing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from transformers.utils import logging

from ...attachments import attachment, from_pretrained
from ...errors import ArgumentError, RunError
from ...files import check_hashes, file_hash, reading, write_text
from ...runs.folder import RunFolder
from ...runs.locks import in_use
from ...runs.scores import BinScores, Difference, PairedScore, SetScores
from ...training.placement import set_beyond
from ...training.process import process_settings
from . import corpus, vocabulary
from .config import TranslationConfig
from .corpus import Pairs
from .decoding import Translator
from .model import MarianMTModel
from .preparing import long_enough, vocabulary_of
from .scoring import bins, bootstrap_over_seeds, paired_bootstrap, paper_bleu, score

_LABELS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact": "exact match",
    "paper_bleu": "the paper's BLEU",
}
ALL_LENGTHS = "all"
"""Name of the bin of all lines."""


def load(path: Path, model: Path | None = None, beyond: str = "") -> Translator:
    """Load a trained run, ready to translate.

    Args:
        path: the run folder.
        model: a folder of other weights than the run's.
        beyond: what happens to sources longer than any in training; as in the run if empty.
    """
    folder = RunFolder.existing(path)
    settings = folder.settings()
    if settings.get("task", "translation") != "translation":
        raise RunError(f"{path} must be a translation run, but is one of {settings['task']}.")
    config = TranslationConfig(**settings)
    if model is not None and not model.is_dir():
        raise RunError(f"{model} must be the folder of a model, but there is none.")
    if model is None and not folder.model.is_dir():
        raise RunError(
            f"{path} holds no model yet; finish it with `floater train … --resume`, or `floater "
            f"average {path}`."
        )
    weights = model or folder.model
    advice = f"recreate it with `floater average {path}`."
    check_hashes(weights, RunError, advice)
    logging.set_verbosity_error()  # transformers warns about positions past 1,024
    with process_settings(), reading(weights, RunError, advice):
        trained = from_pretrained(MarianMTModel, weights)
    set_beyond(trained, beyond)
    trained.eval()
    return Translator(trained, vocabulary.load(folder.vocabulary), config.decoding)


def evaluate(
    folder: RunFolder,
    translator: Translator,
    pairs: Pairs,
    *,
    name: str,
    edges: Sequence[int] = (),
    paper: bool = False,
    beam: int | None = None,
    console: Console | None = None,
) -> SetScores:
    """Translate a test set and score it; the run folder keeps predictions and scores.

    Args:
        folder: the run's.
        translator: the trained model.
        pairs: the test set.
        name: name under which predictions and scores are stored.
        edges: edges of bins of source length, in tokens.
        paper: also compute BLEU as the paper does.
        beam: beam width; the config's by default.
        console: where to show a progress bar.
    """
    if Path(name).name != name or name.startswith("."):
        raise ArgumentError(f"`name` must be a plain name, without folders, but is {name!r}.")
    if edges:
        bins([], edges)  # refuses wrong edges before any work
    config = translator.config
    with in_use(folder.path, "evaluate", exclusive=False):
        folder.scores()  # refuses damaged scores before any work
        started = time.perf_counter()
        with Progress(console=console or Console(stderr=True), transient=True) as bar:
            task = bar.add_task("translating", total=len(pairs))
            translations = translator.translate(
                pairs.source, beam=beam, done=lambda lines: bar.advance(task, lines)
            )
        scores = score(translations, pairs.target)
        if paper:
            scores["paper_bleu"] = paper_bleu(translations, pairs.target)
        return folder.add_scores(
            name,
            SetScores(
                scores=scores,
                examples=len(pairs),
                seconds=round(time.perf_counter() - started, 1),
                data=pairs.fingerprint(),
                settings={
                    "beam": beam or config.beam,
                    "length_penalty": config.length_penalty,
                    **_past_range(translator),
                },
                bins=_by_length(translator, translations, pairs, edges) if edges else {},
            ),
            lambda: _write_predictions(folder, name, translations, pairs.target),
        )


def _past_range(translator: Translator) -> dict[str, str]:
    """What happened to sources longer than any in training, if it was not the usual."""
    attached = attachment(translator.model)
    beyond = "extrapolate" if attached is None else attached.beyond
    return {} if beyond == "extrapolate" else {"beyond": beyond}


def _write_predictions(
    folder: RunFolder, name: str, translations: Sequence[str], references: Sequence[str]
) -> dict[str, str]:
    """Write predictions and references; returns their hashes."""
    hashes = {}
    for file, lines in ((f"{name}.txt", translations), (f"{name}.ref.txt", references)):
        write_text(folder.predictions / file, "".join(f"{line}\n" for line in lines))
        hashes[file] = file_hash(folder.predictions / file)
    return hashes


def _by_length(
    translator: Translator, translations: Sequence[str], pairs: Pairs, edges: Sequence[int]
) -> dict[str, BinScores]:
    lengths = [len(row) for row in translator.vocabulary.encode(pairs.source)]
    scored = {}
    for label, rows in bins(lengths, edges).items():
        hypotheses = [translations[row] for row in rows]
        references = [pairs.target[row] for row in rows]
        scores = score(hypotheses, references) if rows else {}
        scored[label] = BinScores(examples=len(rows), scores=scores)
    return scored


def compare(base: RunFolder, other: RunFolder, name: str) -> PairedScore:
    """Paired bootstrap of two runs on the predictions that both stored under a name."""
    texts, references = (
        [_predictions(folder, f"{name}{ending}", name) for folder in (base, other)]
        for ending in (".txt", ".ref.txt")
    )
    if references[0] != references[1]:
        raise RunError(
            f"{base.path} and {other.path} were evaluated on different references under the name "
            f"{name!r}."
        )
    difference = paired_bootstrap(texts[0], texts[1], references[0])
    return PairedScore(
        **difference.model_dump(), test_set=name, against=base.path.name, measure="bleu"
    )


def compare_by_length(
    runs: Sequence[RunFolder],
    bases: Mapping[str, Sequence[RunFolder]],
    *,
    whole: bool = False,
) -> dict[str, dict[str, Difference]]:
    """The lead of one system over others in each bin of source length: a bootstrap over test lines
    and seeds.

    Args:
        runs: the runs of the system, one per seed. The bins are those of the first run's config, in
            tokens of its vocabulary.
        bases: the runs of the others, by name.
        whole: put all lines into one bin, `ALL_LENGTHS`, instead.

    Returns:
        Differences by name and bin; bins without lines are left out.
    """
    config = TranslationConfig(**runs[0].settings())
    words = vocabulary_of(runs[0], config)
    pairs = long_enough(corpus.load(config.data, "test"), words, config.data.min_test_tokens)
    if pairs is None:
        raise RunError(f"The config of {runs[0].path} names no test set.")
    rows_by_bin = {ALL_LENGTHS: list(range(len(pairs)))}
    if not whole:
        lengths = [len(row) for row in words.encode(pairs.source)]
        rows_by_bin = bins(lengths, config.decoding.length_bins)
    translations = _translations(runs, pairs)
    leads: dict[str, dict[str, Difference]] = {name: {} for name in bases}
    for name, others in bases.items():
        base = _translations(others, pairs)
        for label, rows in rows_by_bin.items():
            if rows:
                leads[name][label] = bootstrap_over_seeds(
                    [[seed[row] for row in rows] for seed in base],
                    [[seed[row] for row in rows] for seed in translations],
                    [pairs.target[row] for row in rows],
                )
    return leads


def _translations(runs: Sequence[RunFolder], pairs: Pairs) -> list[list[str]]:
    """The translations of a test set by each run."""
    for folder in runs:
        if _predictions(folder, "test.ref.txt", "test") != list(pairs.target):
            raise RunError(f"{folder.path} was evaluated on another test set than {pairs.name}.")
    return [_predictions(folder, "test.txt", "test") for folder in runs]


def _predictions(folder: RunFolder, file: str, name: str) -> list[str]:
    """The lines of a file of predictions, unchanged since they were scored."""
    path = folder.predictions / file
    advice = f"run `floater evaluate {folder.path} --name {name}` (again)."
    if not path.is_file():
        raise RunError(f"{folder.path} has no predictions for {name!r}; {advice}")
    scores = folder.scores().sets.get(name)
    if scores is not None and scores.files and scores.files.get(file) != file_hash(path):
        raise RunError(
            f"{path} is damaged or was changed after it was scored: its hash is not the recorded "
            f"one; {advice}"
        )
    with reading(path, RunError, advice):
        return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")


def describe(scores: SetScores) -> str:
    """Scores as text."""
    lines = []
    for measure, label in _LABELS.items():
        if measure in scores.scores:
            value = scores.scores[measure]
            interval = f" ± {value.interval:.2f}" if value.interval is not None else ""
            lines.append(f"{label} {value.score:.2f}{interval}  ({value.signature})")
    for label, content in scores.bins.items():
        text = "no sentence"
        if content.examples:
            bleu, chrf, exact = (content.scores[key].score for key in ("bleu", "chrf", "exact"))
            text = f"BLEU {bleu:.2f}, chrF {chrf:.2f}, exact match {exact:.1f} %"
        lines.append(f"  {label} tokens: {content.examples} sentences, {text}")
    return "\n".join(lines)
