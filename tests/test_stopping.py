"""Ctrl-C, SIGTERM, broken pipes, odd outputs and what nobody foresaw: as a user meets them, in
processes of their own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import ends, mistake, said
from floater import cli
from floater.errors import FloaterError
from translation.corpora import write_config

SOURCE = Path(__file__).parents[1] / "src"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{SOURCE}",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A shell that runs the tests in the background lets all its children ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(*arguments: object, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "floater", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        env={**ENVIRONMENT, **more},
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        errors="replace",
    )


def workers(group: int) -> int:
    """Processes of a group that still live."""
    found = subprocess.run(
        ["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return sum(line.split()[0] == str(group) and "Z" not in line for line in found)


SOON = 3.0
"""Seconds; what is promised."""


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether a process has handlers of its own; before that it is Python's start, of some
    hundredths of a second.
    """
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
@pytest.mark.parametrize("after", [0.0, 0.1, 0.4, 1.0, 2.0, 3.5])
def test_ctrl_c_while_everything_is_imported(tmp_path: Path, after: float) -> None:
    process = start("demo", "--out", tmp_path / "demo")
    while not listens(process):
        time.sleep(0.005)
    time.sleep(after)
    for _ in range(2):  # impatient
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    begun = time.perf_counter()
    _, told = process.communicate(timeout=60)
    assert time.perf_counter() - begun < SOON
    assert process.returncode == 130
    assert told.startswith("floater: stopped after")
    assert told.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_stops_within_three_seconds_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = start("demo", "--out", tmp_path / "demo", "--workers", 2)
    until = time.perf_counter() + 120
    while not list(
        (tmp_path / "demo").glob("*/metrics.jsonl")
    ):  # one trains, the other is about to
        assert process.poll() is None
        assert time.perf_counter() < until
        time.sleep(0.2)
    begun = time.perf_counter()
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert time.perf_counter() - begun < SOON
    assert process.returncode == code
    assert told.count("\n") == 1
    assert told.startswith("floater: stopped")
    time.sleep(0.5)
    assert workers(process.pid) == 0
    assert 1 <= len(list((tmp_path / "demo").glob("*/config.yaml"))) <= 2, (
        "no further run may begin"
    )
    begun_runs = sorted((tmp_path / "demo").glob("*"))
    time.sleep(1.0)
    assert sorted((tmp_path / "demo").glob("*")) == begun_runs


@pytest.mark.parametrize("command", ["--help", "demo --help"])
def test_a_reader_that_goes_away_is_no_error(command: str) -> None:
    process = start(*command.split())
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(60) in (0, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_an_output_without_room_is_one_line() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "floater", "--version"]
        found = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False
        )
    assert found.returncode == 2
    assert found.stderr == b"floater: a file cannot be used: No space left on device.\n"


def test_a_closed_output_is_no_error() -> None:
    command = f"{sys.executable} -m floater --version >&-"
    found = subprocess.run(command, shell=True, capture_output=True, env=ENVIRONMENT, check=False)
    assert (found.returncode, found.stderr) == (0, b"")


ODD = "[red]a[/red] [/b]\n\x1b\udcff"
"""A name with markup, a line break, a control character and a byte that is no text."""


def test_odd_names_of_files_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("train", "evaluate", "translate", "average", "report", "plot", "compare"):
        line = mistake(monkeypatch, capsys, command, tmp_path / ODD)
        assert r"[red]a[/red] [/b] \x1b\udcff" in line, command


@pytest.mark.slow
def test_odd_names_of_folders_are_printed_as_they_are(tmp_path: Path) -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "floater",
            "reproduce",
            "capabilities",
            "--out",
            tmp_path / "[/red] [b]x\udcff",
        ],
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    said = b"".join(found.stdout.split(b"\n"))
    assert b"[/red] [b]x\xff/capabilities-smoke/results.json" in said


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 2, "there is not enough memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            2,
            "there is not enough memory",
        ),
        (RecursionError("maximum recursion depth exceeded"), 2, "nested too deeply"),
        (EOFError(), 2, "the input ended before it was complete"),
        (FloaterError("one\n  two\x00"), 2, r"one two\x00"),
        (FloaterError("x" * 10**6), 2, "xxx … xxx"),
        (
            KeyError("nobody\nforesaw"),
            1,
            "This is a defect of floater, not a mistake of yours; set FLOATER_TRACEBACK=1",
        ),
    ],
)
def test_whatever_is_raised_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    words: str,
) -> None:
    found, told = ends(monkeypatch, capsys, error)
    assert found == code
    told = told.lstrip("\n")
    assert words in told
    assert told.count("\n") == 1
    assert len(told) < 2200


def test_the_traceback_can_be_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(out: object) -> None:
        raise KeyError("nobody foresaw")

    monkeypatch.setattr(cli, "check_folder", fail)
    monkeypatch.setattr(sys, "argv", ["floater", "demo"])
    monkeypatch.setenv("FLOATER_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        cli.main()
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_handlers_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(sys, "argv", ["floater", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    "command", [["demo"], ["reproduce", "s2l"], ["train", "x.yaml"], ["compare", "x.yaml"]]
)
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_imported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    data = (
        "{source: en, target: de, embedded: {train: {pairs: 20}, valid: {pairs: 2}, test: {pairs: "
        "2}}}"
    )
    Path("x.yaml").write_text(f"data: {data}\ntraining: {{updates: 2}}\n", encoding="utf-8")
    begun = time.perf_counter()
    line = mistake(monkeypatch, capsys, *command, "--out", "/proc/nowhere/out")
    assert time.perf_counter() - begun < 20
    assert "`--out` must be a folder that can be written to, but /proc cannot: " in line


@pytest.mark.slow
def test_a_run_in_a_folder_that_looks_like_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "[/red] [bold]"
    config = write_config(tmp_path / "data [/b]", training={"updates": 2, "save_every": 1})
    run = place / "run [/i]"
    said(monkeypatch, capsys, "train", config, "--out", run)
    said(monkeypatch, capsys, "train", config, "--out", run, "--resume")
    said(monkeypatch, capsys, "evaluate", run, "--against", run)
    assert str(place / "mean") in said(
        monkeypatch, capsys, "average", run, "--last", 2, "--out", place / "mean"
    )
    assert "[/i]" in said(monkeypatch, capsys, "plot", run, "--out", place / "figure [/i].png")
    said(monkeypatch, capsys, "report", run, "--out", place / "page.html")
