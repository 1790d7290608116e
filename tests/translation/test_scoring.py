from __future__ import annotations

import pytest
import sacrebleu

from floater.errors import ArgumentError
from floater.tasks.translation.scoring import (
    bins,
    bootstrap_over_seeds,
    paired_bootstrap,
    paper_bleu,
    score,
    split_compounds,
)

REFERENCES = [f"der Hund Nummer {i} läuft schnell durch den Park ." for i in range(40)]
GOOD = [
    line.replace("schnell", "rasch") if i % 4 == 0 else line for i, line in enumerate(REFERENCES)
]
BAD = [
    line.replace("läuft schnell", "rennt") if i % 2 == 0 else line
    for i, line in enumerate(REFERENCES)
]


def test_scores_are_sacrebleus_own() -> None:
    found = score(GOOD, REFERENCES)
    assert found["bleu"].score == pytest.approx(sacrebleu.corpus_bleu(GOOD, [REFERENCES]).score)
    assert found["chrf"].score == pytest.approx(sacrebleu.corpus_chrf(GOOD, [REFERENCES]).score)
    assert "tok:13a" in found["bleu"].signature
    assert "case:mixed" in found["bleu"].signature
    assert found["bleu"].interval is not None
    assert found["bleu"].interval > 0


def test_compounds_are_split_for_the_papers_bleu() -> None:
    assert (
        split_compounds("ein schwarz-weiß-grauer Hund.")
        == "ein schwarz ##AT##-##AT## weiß ##AT##-##AT## grauer Hund ."
    )
    hypothesis, reference = (
        ["ein rot-grauer Hund läuft hier ."],
        ["ein rot-grauer Hund rennt hier ."],
    )
    expected = sacrebleu.corpus_bleu(
        ["ein rot ##AT##-##AT## grauer Hund läuft hier ."],
        [["ein rot ##AT##-##AT## grauer Hund rennt hier ."]],
        tokenize="none",
        force=True,
    )
    assert paper_bleu(hypothesis, reference).score == pytest.approx(expected.score)
    assert (
        paper_bleu(hypothesis, reference).score
        > score(hypothesis, reference, draws=0)["bleu"].score
    )


def test_intervals_survive_scores_of_zero() -> None:
    found = score(["x", "y", "z"], REFERENCES[:3])
    assert found["bleu"].score == 0
    assert found["chrf"].interval is not None


def test_the_paired_test_tells_better_from_equal() -> None:
    found = paired_bootstrap(BAD, GOOD, REFERENCES)
    assert found.difference == pytest.approx(
        score(GOOD, REFERENCES)["bleu"].score - score(BAD, REFERENCES)["bleu"].score
    )
    assert 0 < found.low < found.difference < found.high
    assert found.p_value < 0.05
    same = paired_bootstrap(GOOD, GOOD, REFERENCES)
    assert same.difference == same.low == same.high == 0
    with pytest.raises(ArgumentError, match="equally many lines, but there are 40, 39 and 40"):
        paired_bootstrap(BAD, GOOD[1:], REFERENCES)


def test_bins_cover_every_length_once() -> None:
    found = bins([1, 79, 80, 99, 100, 500], [80, 100])
    assert found == {"0-80": [0, 1], "80-100": [2, 3], "100+": [4, 5]}
    with pytest.raises(ArgumentError, match="increasing positive integers"):
        bins([1], [100, 80])


def test_the_bootstrap_over_seeds_covers_the_spread_of_training() -> None:
    references = [f"the cat number {i} sat on mat {i * i} near the door" for i in range(60)]
    good = [line.replace("door", "window") for line in references]
    bad = [line.replace("sat on", "was by") for line in good]
    mixed = [good, bad, good]
    clear = bootstrap_over_seeds([bad, bad, bad], [good, good, good], references, draws=200)
    assert clear.difference == pytest.approx(
        score(good, references)["bleu"].score - score(bad, references)["bleu"].score
    )
    assert clear.low > 0
    assert clear.p_value == pytest.approx(0.01)
    open_question = bootstrap_over_seeds(mixed, [good, good, good], references, draws=200)
    assert open_question.low == 0 < open_question.difference < open_question.high
    assert open_question.p_value > 0.5  # 8 of 27 draws of seeds leave out the bad one
    same = bootstrap_over_seeds(mixed, mixed, references, draws=200)
    assert same.low < 0 == same.difference < same.high
