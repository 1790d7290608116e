"""Fill the tables of docs/results.md that come from comparisons with what docs/records says.

    python tools/results.py [--check]

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`, and is made of all docs/records/NAME/*.json, which are the
comparison.json files of `floater compare` or `floater reproduce`. With --check nothing is written; a difference ends with 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from floater.files import write_text
from floater.tasks.understanding.tables import markdown

ROOT = Path(__file__).parents[1]
ORDER = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")
"""Of the paper's Table 3; what is not in it follows by name."""


def filled(page: str, records: Path) -> str:
    """The page with all its tables made anew.

    Args:
        page: Markdown with marks.
        records: folder with a folder of comparisons for each mark.
    """

    def table(mark: re.Match[str]) -> str:
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((records / mark[1]).glob("*.json"))]
        if not found:
            print(f"results.py: {records / mark[1]} has no comparison, but the page has a table `{mark[1]}`.", file=sys.stderr)
            sys.exit(2)
        found.sort(key=lambda one: ORDER.index(one["name"]) if one["name"] in ORDER else len(ORDER))
        return f"<!-- {mark[1]} -->\n{markdown(found)}<!-- /{mark[1]} -->"

    return re.sub(r"<!-- ([a-z]+) -->\n.*?<!-- /\1 -->", table, page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    path = ROOT / "docs" / "results.md"
    page = path.read_text(encoding="utf-8")
    made = filled(page, ROOT / "docs" / "records")
    if arguments.check:
        if made != page:
            print("docs/results.md does not say what docs/records says; run python tools/results.py.", file=sys.stderr)
            sys.exit(1)
    else:
        write_text(path, made)


if __name__ == "__main__":
    main()
