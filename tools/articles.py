"""Write the articles of WikiText files as documents, for `floater compare` of embeddings.

    python tools/articles.py FILE.tokens.gz … --out data/articles.jsonl

An article begins at a heading of the first level (` = Title = `). The output has one article per
line, as {"paragraphs": [...]}: normal text, without the markers of WikiText and without headings.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from failing import fail
from floater.errors import FloaterError
from floater.files import write_text
from floater.tasks.language_model.text import from_wikitext, read_text

_HEADING = re.compile(r"\s*(=(?: =)*) .* \1\s*$")
_UNKNOWN = ""  # what stands for a word that WikiText left out


def articles(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the paragraphs of each article."""
    paragraphs: list[str] = []
    for line in lines:
        heading = _HEADING.match(line)
        if heading and heading[1] == "=":
            if paragraphs:
                yield paragraphs
            paragraphs = []
        elif not heading and line.strip():
            paragraphs.append(from_wikitext(line, _UNKNOWN))
    if paragraphs:
        yield paragraphs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="WikiText tokens, plain or .gz")
    parser.add_argument("--out", type=Path, default=Path("data/articles.jsonl"))
    arguments = parser.parse_args()
    try:
        found = [{"paragraphs": article} for article in articles(read_text(arguments.files).lines)]
    except FloaterError as error:
        fail(str(error))
    if not found:
        fail("The files must have articles, but have no paragraph.")
    write_text(arguments.out, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in found))
    print(f"{arguments.out}: {len(found)} articles")


if __name__ == "__main__":
    main()
