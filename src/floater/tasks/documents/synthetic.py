"""Generated documents in which sentence order tells half of the class, and lengths the rest."""

from __future__ import annotations

import numpy as np

from .config import Places
from .text import Documents, collected

_SEED = 21
CLASSES = ("ab early", "ab late", "ba early", "ba late")


def generate(config: Places) -> Documents:
    """The documents; always the same.

    There are two to five sentences before the first marker sentence, a or b, as many between it and
    the second one, and as many after it. These numbers do not depend on the class, and neither does
    the number of tokens between the markers.
    """
    random = np.random.default_rng(_SEED)
    part = config.tokens // 6
    ids, sentences, labels = [], [], []
    for number in range(config.documents):
        backwards, late = number // 2 % 2, number % 2
        before, between = (int(tokens) for tokens in random.integers(part, 3 * part // 2 + 1, 2))
        before += late * 2 * part
        after = config.tokens - before - between
        counts = [int(count) for count in random.integers(2, 6, 3)]
        first, second = ("b", "a") if backwards else ("a", "b")
        ids.append(f"d{number}")
        labels.append(CLASSES[2 * backwards + late])
        sentences.append(
            [
                *_repeated(random, before, counts[0]),
                first,
                *_repeated(random, between, counts[1]),
                second,
                *_repeated(random, after, counts[2]),
            ]
        )
    places = [f"generated document {name}" for name in ids]
    longest = max(map(len, sentences))
    return collected("generated documents", ids, sentences, labels, [], places, longest)


def _repeated(random: np.random.Generator, tokens: int, count: int) -> list[str]:
    """Sentences of one repeated word that have so many tokens together, each at least one."""
    cuts = np.sort(random.permutation(tokens - 1)[: count - 1]) + 1
    lengths = np.diff([0, *cuts, tokens])
    return [" ".join(["so"] * int(length)) for length in lengths]
