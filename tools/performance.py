"""Rebuild the tables and figures of docs/performance.md from docs/records/performance.

    python tools/performance.py [--check] [--take benchmarks/results]

The records are the JSON files of benchmarks/training.py (with and without --memory), inference.py
and scaling.py, without the raw times. `--take` copies them from a folder first. Each table is
between `<!-- NAME -->` and `<!-- /NAME -->`, where NAME.json is its record; where there is no
record, a line says so instead. The figures, docs/figures/overhead.svg and docs/figures/cost.svg,
are drawn and shown only if their records exist. With --check nothing is written, and the exit code
is 1 if a table differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import matplotlib as mpl
from matplotlib.figure import Figure

from floater.files import write_text
from floater.report.figures import grid
from results import check_or_write, markdown_table, with_tables

ROOT = Path(__file__).parents[1]
RAW = ("times", "base_times")
"""Keys of the raw seconds, which records do without."""
OVERHEAD, COST = "overhead-figure", "cost-figure"
"""Markers of the figures."""
SHOWN = ("untouched-again", "flow", "flow-jitter", "flow-frozen", "sinusoidal", "learned", "rotary")
"""Variants in the figure of overheads: those whose cost is of the order of percents."""

SIZES: dict[str, dict[str, int]] = {
    "launches": {"positions": 256, "sites": 18, "width": 512},
    "irregular": {"layers": 2, "width": 64, "rows": 32, "observations": 70},
    "jitter": {"tokens": 768, "length": 48, "layers": 6, "width": 512},
    "methods": {},
    "extended": {"batch": 2, "new": 32},
}
"""Sizes that the page states for a benchmark; those of others are defaults without a number."""
CHANGEABLE = ("layers", "width", "vocabulary", "tokens", "length", "largest")
"""Settings of those that are None by default."""

Record = dict[str, Any]


# --- records ---


def records(folder: Path) -> dict[str, Record]:
    """Return the records of a folder that this page knows, by name."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            _fail(f"{path} must be a JSON file, but is not: {error}")
        if isinstance(record, dict) and record.get("benchmark") in TABLES:
            found[path.stem] = record
    return found


def stripped(value: Any) -> Any:
    """Return a record without its raw times."""
    if isinstance(value, dict):
        return {key: stripped(entry) for key, entry in value.items() if key not in RAW}
    return [stripped(entry) for entry in value] if isinstance(value, list) else value


def _fail(message: str) -> NoReturn:
    print(f"performance.py: {message}", file=sys.stderr)
    sys.exit(2)


def _check_sizes(path: Path, record: Record) -> None:
    """Refuse a quick try: the text of the page states the sizes."""
    settings = record["settings"]
    expected = SIZES.get(record["benchmark"], dict.fromkeys(CHANGEABLE))
    for name, size in expected.items():
        if settings.get(name) != size:
            stated = "the default" if size is None else str(size)
            _fail(f"{path} must have {stated} for --{name}, but has {settings.get(name)}.")


def take(source: Path, target: Path) -> None:
    """Copy the results of benchmarks to the records, without their raw times."""
    for name, record in records(source).items():
        _check_sizes(source / f"{name}.json", record)
        text = json.dumps(stripped(record), indent=1, ensure_ascii=False)
        write_text(target / f"{name}.json", text + "\n")


# --- tables ---


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def _overhead(found: Record) -> list[str]:
    """Cells of the overhead and its interval."""
    middle, low, high = (f"{100 * value:+,.2f}" for value in found["overhead"])
    return [f"{middle} %", f"{low} to {high}"]


def training(record: Record) -> str:
    columns = ("variant", "rounds", "step", "overhead", "95 % interval")
    rows = []
    for name, found in record["variants"].items():
        if name == found["against"]:
            rows.append([name, str(found["rounds"]), _seconds(found["seconds"]), *[""] * 5])
            continue
        solver = [""] * 3
        if "solver_seconds" in found:
            count = found.get("evaluations")
            solver = [
                "" if count is None else f"{count:,.0f}",
                _seconds(found["solver_seconds"]),
                f"{100 * found['solver_share']:.2f} %",
            ]
        head = [name, str(found["rounds"]), _seconds(found["seconds"])]
        rows.append([*head, *_overhead(found), *solver])
    return markdown_table((*columns, "evaluations", "solver", "of the step"), rows)


def memory(record: Record) -> str:
    labels = {"in_use": "in use", "default": "with gaps"}
    variants = record["variants"]
    kinds = [kind for kind in labels if all(kind in found for found in variants.values())]
    return markdown_table(
        ("variant", *(text for kind in kinds for text in (labels[kind], "more"))),
        [
            [
                name,
                *(
                    text
                    for kind in kinds
                    for text in (
                        f"{found[kind] / 1e6:,.0f} MB",
                        f"{100 * found[f'extra_{kind}']:+.2f} %",
                    )
                ),
            ]
            for name, found in variants.items()
        ],
    )


def inference(record: Record) -> str:
    rows = []
    for task, variants in record["tasks"].items():
        for name, found in variants.items():
            overhead = ["", ""] if name == "plain" else _overhead(found)
            head = [task, name, str(found["rounds"]), _seconds(found["seconds"])]
            rows.append([*head, *overhead])
    columns = ("task", "variant", "rounds", "time", "overhead", "95 % interval")
    return markdown_table(columns, rows)


def extended(record: Record) -> str:
    rows = [
        [name, f"{cost['seconds']:.1f} s", f"{cost['peak_bytes'] / 1e6:,.0f} MB"]
        for name, cost in record["extending"].items()
    ]
    return f"{inference(record)}\n{markdown_table(('command', 'time', 'peak memory'), rows)}"


def scaling(record: Record) -> str:
    rows = []
    for path, found in record["rows"].items():
        for row in found:
            # the common setting is part of every series
            factor = row["factors"][0] if len(row["factors"]) == 1 else "all"
            sizes = [f"{row[name]:,}" for name in ("length", "sites", "width", "rtol")]
            counts = [f"{row['evaluations']:,}", f"{row['evaluations_per_time']:.2f}"]
            rows.append([path, factor, *sizes, _seconds(row["seconds"]), *counts])
    head = ("path", "series", "length", "sites", "width", "rtol", "time", "evaluations")
    slopes = [
        [path, factor, *("{:.2f} ± {:.2f}".format(*found[cost]) for cost in found)]
        for path, factors in record["exponents"].items()
        for factor, found in factors.items()
    ]
    exponents = markdown_table(("path", "factor", "exponent of time", "of evaluations"), slopes)
    return f"{markdown_table((*head, 'per unit of time'), rows)}\n{exponents}"


def launches(record: Record) -> str:
    return markdown_table(
        ("what", "launches", "waits of the host"),
        [
            [name, f"{found['launches']:,}", str(found["waits"])]
            for name, found in record["counts"].items()
        ],
    )


def irregular(record: Record) -> str:
    rows = [
        [name, str(found["rounds"]), _seconds(found["seconds"]), *_overhead(found)]
        for name, found in record["variants"].items()
        if found["overhead"] != [0, 0, 0]
    ]
    return markdown_table(("positions", "rounds", "step", "overhead", "95 % interval"), rows)


def jitter(record: Record) -> str:
    rows = []
    for name, key in (("stretched times", "overhead"), ("untouched against untouched", "control")):
        rows.append([name, *_overhead({"overhead": record[key]}), str(record["settings"]["pairs"])])
    return markdown_table(("step", "more time", "95 % interval", "rounds"), rows)


def methods(record: Record) -> str:
    rows = [
        [
            row["method"],
            str(row["order"]),
            f"{row['rtol']:g}",
            f"{row['error']:.1e}",
            f"{row['count']:,}",
        ]
        for row in record["rows"]
    ]
    return markdown_table(("method", "order", "rtol", "largest error", "evaluations of h"), rows)


TABLES: dict[str, Callable[[Record], str]] = {
    "training": training,
    "memory": memory,
    "inference": inference,
    "extended": extended,
    "scaling": scaling,
    "launches": launches,
    "irregular": irregular,
    "jitter": jitter,
    "methods": methods,
}
"""The table of each benchmark."""


def machine(record: Record) -> str:
    """Return where and with what a record was measured, as a line."""
    facts = record["machine"]
    kernel = "with the kernel" if facts["kernel"] else "without the kernel"
    instructions = f" ({facts['instructions']})" if "instructions" in facts else ""
    return (
        f"{facts['cpu']}{instructions}, {facts['threads']} threads on {facts['cores']} cores, "
        f"load average {facts['load_average']:.1f} at the end; torch {facts['torch']}, "
        f"transformers {facts['transformers']}, floater {facts['floater']}, {kernel}.\n"
    )


def filled(page: str, found: dict[str, Record]) -> str:
    """Rebuild all tables of a page, and show the figures that there are records for."""

    def text(name: str) -> str:
        if name == OVERHEAD:
            drawn = overheads(found)
            return "![Overhead of each variant](figures/overhead.svg)\n" if drawn else ""
        if name == COST:
            return "![Cost against length](figures/cost.svg)\n" if costs(found) else ""
        if name not in found:
            return "Not measured yet.\n"
        record = found[name]
        return f"{TABLES[record['benchmark']](record)}\n{machine(record)}"

    return with_tables(page, text)


# --- figures ---


def overheads(found: dict[str, Record]) -> dict[str, dict[str, list[float]]]:
    """Return the overheads in percent with their intervals, by model and variant."""
    models = {
        name.removeprefix("training-"): {
            variant: [100 * value for value in record["variants"][variant]["overhead"]]
            for variant in SHOWN
            if variant in record["variants"]
        }
        for name, record in found.items()
        if record["benchmark"] == "training"
    }
    return {model: variants for model, variants in models.items() if variants}


def costs(found: dict[str, Record]) -> dict[str, list[tuple[int, float]]]:
    """Return (length, seconds) for each path of the solver."""
    return {
        path: sorted((row["length"], row["seconds"]) for row in rows if "length" in row["factors"])
        for path, rows in found.get("scaling", {}).get("rows", {}).items()
    }


def draw(found: dict[str, Record], folder: Path) -> None:
    """Draw the figures for which there are records."""
    mpl.rcParams["svg.hashsalt"] = "floater"
    panels = overheads(found)
    if panels:
        figure, axes = grid(len(panels))
        for axis, (model, variants) in zip(axes, panels.items(), strict=True):
            for place, (middle, low, high) in enumerate(reversed(variants.values())):
                axis.plot([low, high], [place, place], color="#4a6fa5", linewidth=2)
                axis.plot(middle, place, "o", color="#4a6fa5", markersize=6)
            axis.set_yticks(range(len(variants)), list(reversed(variants)))
            axis.axvline(0, color="0.5", linewidth=1, linestyle="--")
            axis.set_title(model, fontsize=11)
            axis.set_xlabel("more time than the untouched model (%)", fontsize=9)
            axis.grid(alpha=0.3)
        _save(figure, folder / "overhead.svg")
    lines = costs(found)
    if lines:
        figure, (axis,) = grid(1)
        for mark, (path, points) in zip("os", lines.items(), strict=False):
            axis.loglog(*zip(*points, strict=True), marker=mark, markersize=5, label=path)
        axis.set_xlabel("positions", fontsize=9)
        axis.set_ylabel("solve and reverse sweep (s)", fontsize=9)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        _save(figure, folder / "cost.svg")


def _save(figure: Figure, path: Path) -> None:
    """Write an SVG that is the same for the same records."""
    figure.savefig(path, metadata={"Date": None})


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--take", type=Path, help="folder of results to copy first")
    arguments = parser.parse_args(given)
    folder = ROOT / "docs" / "records" / "performance"
    if arguments.take is not None and not arguments.check:
        if not records(arguments.take):
            print(f"performance.py: {arguments.take} has no results.", file=sys.stderr)
            sys.exit(2)
        take(arguments.take, folder)
    found = records(folder)
    path = ROOT / "docs" / "performance.md"
    advice = "does not match docs/records/performance; run python tools/performance.py."
    rebuilt = filled(path.read_text(encoding="utf-8"), found)
    check_or_write(path, rebuilt, arguments.check, advice)
    if not arguments.check:
        draw(found, ROOT / "docs" / "figures")


if __name__ == "__main__":
    main()
