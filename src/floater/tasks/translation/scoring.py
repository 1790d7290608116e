"""BLEU and chrF by sacreBLEU and exact match, with signatures, intervals and paired tests."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from ...errors import ArgumentError
from ...runs.scores import Difference, Score

_SEED = 12345  # sacreBLEU's own


def score(
    hypotheses: Sequence[str], references: Sequence[str], *, draws: int = 1000
) -> dict[str, Score]:
    """Cased sacreBLEU (13a), chrF and exact match.

    `draws` bootstrap samples make the interval; 0 makes none.
    """
    scores = {
        name: _score(metric, hypotheses, references, draws)
        for name, metric in (("bleu", BLEU), ("chrf", CHRF))
    }
    return {**scores, "exact": exact_match(hypotheses, references, draws=draws)}


def exact_match(
    hypotheses: Sequence[str], references: Sequence[str], *, draws: int = 1000
) -> Score:
    """Percentage of hypotheses that are their reference, letter for letter."""
    right = np.array(
        [100.0 * (one == other) for one, other in zip(hypotheses, references, strict=True)]
    )
    if not draws or len(right) < 2:
        return Score(score=float(right.mean()), signature="exact")
    random = np.random.default_rng(_SEED)
    means = [right[random.integers(0, len(right), len(right))].mean() for _ in range(draws)]
    low, high = np.percentile(means, [2.5, 97.5])
    return Score(
        score=float(right.mean()),
        interval=float(high - low) / 2,
        signature=f"exact|bs:{draws}|seed:{_SEED}",
    )


def _score(
    metric_class: type[BLEU | CHRF],
    hypotheses: Sequence[str],
    references: Sequence[str],
    draws: int,
) -> Score:
    metric = metric_class(references=[list(references)])
    value = float(metric.corpus_score(list(hypotheses), None).score)
    if not draws or len(hypotheses) < 2:
        return Score(score=value, signature=str(metric.get_signature()))
    low, high = np.percentile(
        _resampled(metric, [hypotheses], len(references), draws)[0], [2.5, 97.5]
    )
    return Score(
        score=value,
        interval=float(high - low) / 2,
        signature=f"{metric.get_signature()}|bs:{draws}|seed:{_SEED}",
    )


def _resampled(
    metric: BLEU | CHRF, systems: Sequence[Sequence[str]], count: int, draws: int
) -> np.ndarray:
    """Scores [systems, draws] over resamples of the sentences, the same ones for every system.

    sacreBLEU's own resampling fails where a score of a resample is exactly zero, which short
    training runs give.
    """
    statistics = [
        np.array(metric._extract_corpus_statistics(list(system), None)) for system in systems
    ]
    random = np.random.default_rng(_SEED)
    scores = np.empty((len(systems), draws))
    for draw in range(draws):
        rows = random.integers(0, count, count)
        for number, system in enumerate(statistics):
            scores[number, draw] = _corpus_score(metric, system, rows)
    return scores


def _corpus_score(metric: BLEU | CHRF, statistics: np.ndarray, lines: np.ndarray) -> float:
    return float(metric._compute_score_from_stats(statistics[lines].sum(0).tolist()).score)


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU as the paper computes it: of tokenised text with hyphenated compounds split. Not
    comparable with sacreBLEU.

    The tokeniser is mteval's 13a, as no Moses scripts are shipped.
    """
    metric = BLEU(tokenize="none", force=True)
    bleu = metric.corpus_score(
        list(map(split_compounds, hypotheses)), [list(map(split_compounds, references))]
    )
    return Score(score=bleu.score, signature=f"{metric.get_signature()}|own:13a+compounds")


_tokenise = Tokenizer13a()  # type: ignore[no-untyped-call]


def split_compounds(line: str) -> str:
    """Tokenised text in which a-b has become three tokens."""
    return re.sub(r"(\S)-(?=\S)", r"\1 ##AT##-##AT## ", _tokenise(line))


def paired_bootstrap(
    base: Sequence[str], other: Sequence[str], references: Sequence[str], *, draws: int = 1000
) -> Difference:
    """Paired bootstrap of BLEU: sacreBLEU's p-value, and the interval of the difference over the
    same resamples.
    """
    if not len(base) == len(other) == len(references):
        raise ArgumentError(
            f"A paired test needs equally many lines, but there are {len(base)}, {len(other)} and "
            f"{len(references)} (references)."
        )
    metric = BLEU(references=[list(references)])
    test = PairedTest(
        [("base", list(base)), ("other", list(other))],
        {"BLEU": metric},
        references=None,
        test_type="bs",
        n_samples=draws,
        n_jobs=1,
    )
    signatures, results = test()
    first, second = results["BLEU"]
    assert isinstance(first, Result)
    assert isinstance(second, Result)
    assert second.p_value is not None
    scores = _resampled(metric, [base, other], len(references), draws)
    low, high = np.percentile(scores[1] - scores[0], [2.5, 97.5])
    if list(base) == list(other):
        # sacreBLEU counts the resamples that are no better, and would find a difference.
        second.p_value = 1.0
    return Difference(
        base=float(first.score),
        other=float(second.score),
        difference=float(second.score) - float(first.score),
        low=float(low),
        high=float(high),
        p_value=float(second.p_value),
        signature=str(signatures["BLEU"]),
    )


def bootstrap_over_seeds(
    base: Sequence[Sequence[str]],
    other: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    draws: int = 1000,
) -> Difference:
    """Bootstrap of the difference between mean BLEU scores over the seeds of two systems.

    Each draw resamples the lines, the same ones for all seeds, and the seeds of each system. So the
    interval covers the spread of training as well as that of the test set.

    Args:
        base: translations of the lines by each seed of one system.
        other: the same of the other system.
        references: of the lines.
        draws: number of resamples.
    """
    metric = BLEU(references=[list(references)])
    systems = [
        [np.array(metric._extract_corpus_statistics(list(seed), None)) for seed in system]
        for system in (base, other)
    ]
    random = np.random.default_rng(_SEED)
    every_line = np.arange(len(references))
    whole = [
        np.mean([_corpus_score(metric, seed, every_line) for seed in system]) for system in systems
    ]
    differences = np.empty(draws)
    for draw in range(draws):
        lines = random.integers(0, len(references), len(references))
        means = []
        for system in systems:
            scores = [_corpus_score(metric, seed, lines) for seed in system]
            means.append(np.mean([scores[i] for i in random.integers(0, len(scores), len(scores))]))
        differences[draw] = means[1] - means[0]
    low, high = np.percentile(differences, [2.5, 97.5])
    tail = float(min(np.mean(differences <= 0), np.mean(differences >= 0)))
    return Difference(
        base=float(whole[0]),
        other=float(whole[1]),
        difference=float(whole[1] - whole[0]),
        low=float(low),
        high=float(high),
        p_value=float(min(1.0, 2 * max(tail, 1 / draws))),
        signature=f"{metric.get_signature()}|bs:{draws}|lines+seeds|seed:{_SEED}",
    )


def bins(lengths: Sequence[int], edges: Sequence[int]) -> dict[str, list[int]]:
    """Numbers of the sentences in each bin of source length: [0, first edge), …, [last edge, ∞)."""
    if list(edges) != sorted(set(edges)) or not edges or edges[0] < 1:
        raise ArgumentError(
            "Length bins must be increasing positive integers, but are "
            f"{', '.join(map(str, edges))}."
        )
    found = {}
    for low, high in itertools.pairwise((0, *edges, math.inf)):
        name = f"{low}+" if high == math.inf else f"{low}-{high}"
        found[name] = [i for i, length in enumerate(lengths) if low <= length < high]
    return found
