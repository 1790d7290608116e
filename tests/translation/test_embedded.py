from __future__ import annotations

from datetime import date, time
from pathlib import Path

import pytest

from floater.errors import ConfigError, DataError
from floater.tasks.translation import corpus
from floater.tasks.translation.config import SplitFiles, TranslationDataConfig
from floater.tasks.translation.embedded import LANGUAGES, Embedded, Lines, generate, spell
from floater.tasks.translation.scoring import exact_match

CORPUS = Embedded(
    train=Lines(pairs=60, longest=3),
    valid=Lines(pairs=10),
    test=Lines(pairs=20, shortest=5, longest=12),
)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (21, ("twenty-one", "einundzwanzig", "vingt et un")),
        (0, ("zero", "null", "zéro")),
        (
            date(1987, 3, 21),
            (
                "Saturday, March twenty-first, nineteen eighty-seven",
                "Samstag, der einundzwanzigste März neunzehnhundertsiebenundachtzig",
                "samedi vingt et un mars mille neuf cent quatre-vingt-sept",
            ),
        ),
        (
            time(21, 5),
            ("nine oh five at night", "einundzwanzig Uhr fünf", "vingt et une heures cinq"),
        ),
        (time(1, 0), ("one o'clock in the morning", "ein Uhr", "une heure")),
        (time(0, 30), ("twelve thirty in the morning", "null Uhr dreißig", "zéro heure trente")),
    ],
)
def test_items_are_written_as_people_say_them(
    item: int | date | time, words: tuple[str, ...]
) -> None:
    assert tuple(spell(item, language) for language in LANGUAGES) == words


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_is_right_or_wrong_because_no_two_items_read_alike(language: str) -> None:
    clock = [time(hour, minute) for hour in range(24) for minute in range(60)]
    assert len({spell(item, language) for item in clock}) == len(clock)
    days = [
        date.fromordinal(number)
        for number in range(date(1999, 1, 1).toordinal(), date(2001, 12, 31).toordinal())
    ]
    assert len({spell(item, language) for item in days}) == len(days)
    assert len({spell(item, language) for item in range(1200)}) == 1200


def test_the_same_seed_makes_the_same_lines_and_parts_are_disjoint() -> None:
    train = generate(CORPUS, "train", "en", "de")
    assert train == generate(CORPUS, "train", "en", "de")
    assert train != generate(CORPUS.model_copy(update={"seed": 1}), "train", "en", "de")
    assert train[0] == generate(CORPUS, "train", "fr", "en")[1]
    assert not set(train[0]) & set(generate(CORPUS, "valid", "en", "de")[0])


def test_the_number_of_items_is_what_was_asked_for() -> None:
    items = [line.count(";") + 1 for line in generate(CORPUS, "test", "en", "fr")[1]]
    assert (min(items), max(items), len(items)) == (5, 12, 20)
    only = CORPUS.model_copy(update={"items": ("time",)})
    assert all(
        "Uhr" in part for line in generate(only, "test", "en", "de")[1] for part in line.split("; ")
    )


def test_a_part_that_cannot_differ_from_training_is_refused() -> None:
    single = Lines(pairs=2000, longest=1)
    tiny = Embedded(train=single, valid=single, test=single, items=("number",), largest=9)
    with pytest.raises(
        DataError, match=r"must differ from its training part.*allow more items a line"
    ):
        generate(tiny, "valid", "en", "de")


def test_it_is_a_source_of_data_beside_files_and_hub(tmp_path: Path) -> None:
    found = corpus.load(TranslationDataConfig(source="en", target="de", embedded=CORPUS), "test")
    assert found is not None
    assert found.fingerprint()["from"] == "embedded number, date, time, seed 0, test"
    assert len(found) == 20
    with pytest.raises(ConfigError, match=r"give one of `train` .*, `hub` .* and `embedded`"):
        TranslationDataConfig(source="en", target="de")
    with pytest.raises(DataError, match="written in en, de, fr, but 'it' was asked for"):
        corpus.load(TranslationDataConfig(source="en", target="it", embedded=CORPUS), "train")
    with pytest.raises(ConfigError, match=r"`shortest` must not exceed `longest` \(4\), but is 5"):
        Lines(pairs=1, shortest=5)


def test_several_tsv_files_are_joined(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        paths.append(tmp_path / f"{number}.tsv")
        paths[-1].write_text(f"en\tde\none {number}\teins {number}\n", encoding="utf-8")
    split = SplitFiles(tsv=tuple(paths))
    found = corpus.load(
        TranslationDataConfig(source="en", target="de", train=split, valid=split), "train"
    )
    assert found is not None
    assert found.target == ["eins 0", "eins 1"]
    assert found.name == f"{paths[0]} + {paths[1]}"


def test_sources_can_be_held_shorter_than_targets() -> None:
    source, target = [[1] * 4, [1] * 5, [1] * 3], [[1] * 8, [1] * 3, [1] * 9]
    data = TranslationDataConfig(
        source="en", target="de", embedded=CORPUS, max_tokens=8, max_source_tokens=4
    )
    assert corpus.usable(data, source, target) == [0]


def test_exact_match_counts_lines_that_are_their_reference() -> None:
    found = exact_match(["a", "b", "c", "d"], ["a", "B", "c ", "d"])
    assert found.score == 50
    assert found.interval is not None
    assert 10 < found.interval <= 50
    assert exact_match(["a"], ["a"]).interval is None
