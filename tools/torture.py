"""Try to break FLOATER: damaged files, odd configs, kills between any two writes, two processes at
once, full disks.

    python tools/torture.py                  all families, for at most ten minutes python
    tools/torture.py --seconds 90     as many cases as fit into 90 seconds, a share for each family

Each case runs in a process of its own, which is forked from one that has imported everything, and
ends in one of these:

    right      it did what it should, to the bit where that is promised refused    one line on
    standard error and exit code 2; nothing on disk has changed but what was already broken wrong
    it said nothing, and the result is not the right one lost       something that was there before
    is gone or has changed traceback  it ended in anything but a result or one line hang       it
    did not end in time

The last four are failures: they are printed with what is needed to see them again, and the exit
code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import yaml
from safetensors.torch import load_file

import floater
from floater import cli
from floater.experiments.arms import embedded
from floater.experiments.tiny_data import write_world

FAILURES = ("wrong", "lost", "traceback", "hang")
OUTCOMES = ("right", "refused", *FAILURES)
PATIENCE = 45.0
"""Seconds after which a case hangs."""


# Processes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a command in a process of its own ended."""

    code: int | None
    """Exit code; that of a signal is negative; None if it hung."""
    out: str
    err: str

    def said(self) -> list[str]:
        """The lines that begin with the program's name."""
        return [line for line in self.err.splitlines() if line.startswith("floater: ")]

    def refused(self) -> bool:
        """Whether it ended in one line and exit code 2."""
        return self.code == 2 and len(self.said()) == 1 and "Traceback" not in self.err

    def outcome(self) -> str:
        """right, refused, traceback or hang, as far as its end tells."""
        if self.code is None:
            return "hang"
        if self.code == 0 and "Traceback" not in self.err:
            return "right"
        return "refused" if self.refused() else "traceback"


@dataclass(frozen=True)
class Child:
    """A process at work, and the ends of the pipes that hold what it says."""

    number: int
    out: int
    err: int


def start(work: Callable[[], None]) -> Child:
    """Begin to do something in a process of its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    pipes = [os.pipe() for _ in range(2)]  # not files: some cases forbid large ones
    for inside, _ in pipes:
        with contextlib.suppress(OSError):
            fcntl.fcntl(inside, 1031, 2**20)  # F_SETPIPE_SZ: room for all it may say
        os.set_blocking(inside, False)
    child = os.fork()
    if child:
        for _, outside in pipes:
            os.close(outside)
        return Child(child, pipes[0][0], pipes[1][0])
    code = 1
    try:
        os.setsid()
        for number, (_, outside) in enumerate(pipes, 1):
            os.dup2(outside, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        with contextlib.suppress(AttributeError, OSError):  # end with the parent
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        torch.set_num_threads(1)
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # scripts in the background ignore it
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:  # before the command itself could listen
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def wait(child: Child, patience: float = PATIENCE) -> Ended:
    """Wait for a process that `start` began."""
    end = time.monotonic() + patience
    code: int | None = None
    while True:
        done, status = os.waitpid(child.number, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > end:
            os.killpg(child.number, signal.SIGKILL)
            os.waitpid(child.number, 0)
            break
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.number, signal.SIGKILL)
    return Ended(code, _drained(child.out), _drained(child.err))


def _drained(pipe: int) -> str:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe, 2**16):
            data += part
    os.close(pipe)
    return data.decode(errors="replace")


def run(work: Callable[[], None], patience: float = PATIENCE) -> Ended:
    """Do something in a process of its own."""
    return wait(start(work), patience)


def command(*arguments: object, before: Callable[[], None] | None = None) -> Callable[[], None]:
    """A command line as work for a process."""

    def work() -> None:
        sys.argv = ["floater", *map(str, arguments)]
        if before is not None:
            before()
        cli.main()

    return work


# What is on disk ----------------------------------------------------------------------------------

_PASSING = (".lock", ".tmp")  # a lock may stay behind, empty or not


def snapshot(folder: Path) -> dict[str, str]:
    """The content of every file below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not any(part.endswith(_PASSING) for part in name.split("/")):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def lost(before: dict[str, str], after: dict[str, str], allowed: Sequence[str] = ()) -> list[str]:
    """Files that are gone or have changed."""
    return [
        name
        for name, value in before.items()
        if after.get(name) != value and not name.startswith(tuple(allowed))
    ]


DAMAGES = ("empty", "cut", "bits", "random", "list", "text", "gone", "folder", "deep", "number")


def damage(path: Path, how: str, draw: random.Random) -> None:
    """Break a file."""
    data = bytearray(path.read_bytes())
    if how in ("gone", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
        return
    if how == "cut":
        data = data[: draw.randrange(len(data)) if data else 0]
    elif how == "bits" and data:
        for _ in range(3):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    else:
        data = bytearray(
            {
                "empty": b"",
                "random": draw.randbytes(max(len(data), 16)),
                "list": b"[1, [2, {}], null]",
                "text": b'"\\ud800 [/red] <script>"',
                "deep": b"[" * 5000,
                "number": b"1e999",
            }.get(how, bytes(data))
        )
    path.write_bytes(data)


# The world ----------------------------------------------------------------------------------------


def settings(updates: int = 8) -> dict[str, Any]:
    """A translation run that takes a second."""
    changes = {
        "data": {
            "embedded": {
                part: {"pairs": pairs}
                for part, pairs in (("train", 120), ("valid", 4), ("test", 4))
            }
        },
        "vocabulary": {"size": 320},
        "model": {"dim": 16, "feed_forward": 16, "heads": 2},
        "training": {
            "updates": updates,
            "save_every": 2,
            "evaluate_every": 4,
            "batch_tokens": 256,
            "log_every": 2,
        },
        "decoding": {"length_bins": [16]},
    }
    return embedded("flow-blocks", **changes)


@dataclass
class World:
    """Finished things to break, and what they give while they are whole."""

    root: Path
    references: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "config.yaml").write_text(yaml.safe_dump(settings()))
        write_world(self.root / "world", self.root / "law")
        (self.root / "input.txt").write_text("four hundred\nseven\n")

        def half() -> None:  # a run that was killed after its second checkpoint
            trainer: Any = importlib.import_module("floater.training.trainer")
            publish, count = trainer.publish, [0]

            def die(*args: Any) -> None:
                publish(*args)
                count[0] += 1
                if count[0] == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

            trainer.publish = die

        small = (
            "--set",
            "training.updates=4",
            "--set",
            "training.save_every=2",
            "--set",
            "training.evaluate_every=4",
        )
        rte = self.root / "world" / "rte.yaml"
        jobs = {
            "run": command("train", self.root / "config.yaml", "--out", self.root / "run"),
            "half": command(
                "train", self.root / "config.yaml", "--out", self.root / "half", before=half
            ),
            "law": command("train", self.root / "world" / "law.yaml", "--out", self.root / "law"),
            "rte": command("train", rte, "--out", self.root / "rte", *small),
            "model": self._model,
        }
        for name, work in jobs.items():
            ended = run(work, 300)
            if ended.code != (-9 if name == "half" else 0):
                raise SystemExit(
                    f"the world cannot be made: {name} ended in "
                    f"{ended.code}\n{ended.out}\n{ended.err}"
                )
        self.small = small
        self.references["weights"] = load_file(self.root / "run" / "model" / "model.safetensors")
        self.references["floater"] = load_file(self.root / "run" / "model" / "floater.safetensors")
        self.references["translate"] = run(self.translate(self.root / "run")).out
        self.references["model"] = run(self.outputs(self.root / "model")).out

    def _model(self) -> None:
        from transformers import BertConfig, BertForMaskedLM  # noqa: PLC0415

        torch.manual_seed(0)
        shape: dict[str, Any] = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 16,
        }
        model = BertForMaskedLM(
            BertConfig(vocab_size=40, max_position_embeddings=30, **shape)
        ).eval()
        made = floater.attach(model, floater.FlowConfig(zero_init=False, initial_scale=0.5))
        made.bake(12)
        floater.save_pretrained(model, self.root / "model")

    def translate(self, folder: Path) -> Callable[[], None]:
        """The translation of two lines."""
        return command("translate", folder, "--input", self.root / "input.txt")

    def outputs(self, folder: Path) -> Callable[[], None]:
        """What a saved model gives."""

        def work() -> None:
            from transformers import AutoModelForMaskedLM  # noqa: PLC0415

            sys.argv = ["floater"]
            try:
                model = floater.from_pretrained(AutoModelForMaskedLM, folder)
                with torch.no_grad():
                    out = model(input_ids=torch.arange(3, 12)[None]).logits
            except floater.FloaterError as error:
                print(f"floater: {str(error).splitlines()[0]}", file=sys.stderr)
                sys.exit(2 if "\n" not in str(error) else 1)
            print(hashlib.sha256(out.numpy().tobytes()).hexdigest())

        return work

    def copy(self, name: str, place: Path) -> Path:
        """A copy of one of its folders."""
        shutil.copytree(self.root / name, place / name, symlinks=True)
        return place / name

    def same_model(self, folder: Path) -> bool:
        """Whether a finished run has the weights of the reference."""
        for name in ("weights", "floater"):
            file = "model.safetensors" if name == "weights" else "floater.safetensors"
            found = load_file(folder / "model" / file)
            if not all(
                torch.equal(found[key], value) for key, value in self.references[name].items()
            ):
                return False
        return True


@dataclass(frozen=True)
class Case:
    """One try: a name to find it again, and what to do, which returns an outcome and, for failures,
    what was seen.
    """

    name: str
    attempt: Callable[[Path], tuple[str, str]]


# Families of cases --------------------------------------------------------------------------------


def damaged_runs(world: World, draw: random.Random) -> Iterator[Case]:
    """A file of a finished, a stopped and an understanding run is broken, and a command is
    given.
    """
    while True:
        source = draw.choice(["run", "run", "half", "rte"])
        files = [
            path.relative_to(world.root / source)
            for path in sorted((world.root / source).rglob("*"))
            if path.is_file()
        ]
        file, how, seed = draw.choice(files), draw.choice(DAMAGES), draw.randrange(10**6)
        whole = ["translate", "evaluate", "average", "plot", "report"]
        act = draw.choice(
            {"run": whole, "half": ["train"], "rte": ["evaluate", "report", "plot", "train"]}[
                source
            ]
        )

        def attempt(
            place: Path,
            source: str = source,
            file: Path = file,
            how: str = how,
            act: str = act,
            seed: int = seed,
        ) -> tuple[str, str]:
            folder = world.copy(source, place)
            damage(folder / file, how, random.Random(seed))
            before = snapshot(folder)
            ended = run(_act(world, act, source, folder, place))
            after = snapshot(folder)
            found = ended.outcome()
            if (
                found == "right"
                and act == "translate"
                and ended.out != world.references["translate"]
            ):
                return "wrong", ended.out
            if (
                found == "right"
                and act == "train"
                and source == "half"
                and not world.same_model(folder)
            ):
                return "wrong", "other weights"
            if found == "refused" and (gone := lost(before, after, ("metrics.jsonl", "run.json"))):
                return "lost", f"{gone}\n{ended.err}"
            return found, ended.err

        yield Case(f"{source}: {file} {how} (seed {seed}), {act}", attempt)


def _act(world: World, act: str, source: str, folder: Path, place: Path) -> Callable[[], None]:
    if act == "translate":
        return world.translate(folder)
    if act == "train":
        config = world.root / ("config.yaml" if source == "half" else "world/rte.yaml")
        return command(
            "train", config, "--out", folder, "--resume", *(() if source == "half" else world.small)
        )
    more: dict[str, tuple[object, ...]] = {
        "average": ("--last", 2, "--out", place / "averaged"),
        "plot": ("--out", place / "plot.png"),
        "report": ("--out", place / "report.html"),
    }
    return command(act, folder, *more.get(act, ()))


def damaged_models(world: World, draw: random.Random) -> Iterator[Case]:
    """A file of a saved model is broken, and the model is loaded."""
    while True:
        files = [
            path.name
            for path in sorted((world.root / "model").iterdir())
            if path.name != "README.md"
        ]
        file, how, seed = draw.choice(files), draw.choice(DAMAGES), draw.randrange(10**6)
        hashed = draw.random() < 0.7

        def attempt(
            place: Path, file: str = file, how: str = how, seed: int = seed, hashed: bool = hashed
        ) -> tuple[str, str]:
            folder = world.copy("model", place)
            damage(folder / file, how, random.Random(seed))
            if not hashed and (folder / "hashes.json").is_file():
                (folder / "hashes.json").unlink()
            before = snapshot(folder)
            ended = run(world.outputs(folder))
            if ended.outcome() == "right" and ended.out != world.references["model"]:
                harmless = not hashed and file == "config.json"  # without hashes nothing tells
                return ("right" if harmless else "wrong"), ended.out
            return ("lost" if lost(before, snapshot(folder)) else ended.outcome()), ended.err

        yield Case(
            f"model{'' if hashed else ' without hashes'}: {file} {how} (seed {seed})", attempt
        )


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 10**9, 10**30, -(10**30), 1e-300, 1e300, float("nan"), float("inf")),
    *(
        "",
        "x",
        "[/red]",
        "${NOTHING}",
        "../../..",
        "\x00",
        "é" * 300,
        [],
        [1],
        {},
        {"a": {"b": 1}},
        [[[]]],
    ),
)


def odd_configs(world: World, draw: random.Random) -> Iterator[Case]:
    """A setting becomes something else, or the text of a config is garbled; then the run is
    trained.
    """

    def places(found: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        for key, value in found.items():
            yield (*above, key)
            if isinstance(value, dict):
                yield from places(value, (*above, key))

    garbled = (
        *(
            "a: &a [1]\nb: [*a, *a]\n",
            "? [1, 2]\n: x\n",
            "1: 2\n",
            "2026-11-16: 1\n",
            "- a\n",
            "null: 1\n",
        ),
        *(
            "a: !!python/object:os.system x\n",
            "".join(f"k{i}: &k{i} [{f'*k{i - 1},' * 9 if i else 1}]\n" for i in range(12)),
        ),
    )
    while True:
        made = settings(2)
        where, value = draw.choice(list(places(made))), draw.choice(ODD)
        way = draw.random()
        if way < 0.15:
            text = draw.choice(garbled) + (yaml.safe_dump(made) if draw.random() < 0.5 else "")
            name = f"garbled {text[:30]!r}"
        elif way < 0.3:
            lines = yaml.safe_dump(made).splitlines()
            spot = draw.randrange(len(lines))
            lines[spot] = lines[spot].replace(
                draw.choice(" :abcde1"), draw.choice(["", "\t", "[", "'", "&x ", "%"]), 1
            )
            text, name = "\n".join(lines), f"line {spot} reads {lines[spot]!r}"
        else:
            inner = made
            for key in where[:-1]:
                inner = inner[key]
            inner[where[-1]] = value
            text, name = yaml.dump(made, allow_unicode=True), f"{'.'.join(where)} = {value!r}"[:100]

        def attempt(place: Path, text: str = text) -> tuple[str, str]:
            (place / "config.yaml").write_text(text, encoding="utf-8")
            ended = run(command("train", place / "config.yaml", "--out", place / "out"))
            if ended.outcome() == "right":
                weights = load_file(place / "out" / "model" / "model.safetensors")
                if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
                    return "wrong", "weights that are not finite"
            return ended.outcome(), ended.err

        yield Case(f"config: {name}", attempt)


def kills(world: World, draw: random.Random) -> Iterator[Case]:
    """A run is killed before one of the calls that change the disk, often twice, and resumed; the
    bits are compared.
    """
    spots = list(range(1, 400, 3))
    draw.shuffle(spots)
    for spot in spots:
        again = draw.randrange(1, 200) if draw.random() < 0.5 else None

        def attempt(place: Path, spot: int = spot, again: int | None = again) -> tuple[str, str]:
            out = place / "out"
            for limit in (spot, again):
                if limit is None:
                    continue
                resume = ("--resume",) if out.exists() else ()
                ended = run(
                    command(
                        "train",
                        world.root / "config.yaml",
                        "--out",
                        out,
                        *resume,
                        before=_mortal(limit),
                    )
                )
                if ended.code not in (-9, 0):
                    return ended.outcome() if not ended.refused() else "traceback", ended.err
            ended = run(
                command(
                    "train",
                    world.root / "config.yaml",
                    "--out",
                    out,
                    *(("--resume",) if out.exists() else ()),
                )
            )
            if ended.code != 0:
                return "lost" if ended.refused() else ended.outcome(), ended.err
            if not world.same_model(out):
                return "wrong", "other weights"
            left = [path.name for path in out.rglob(".*") if path.is_dir()]
            return ("right", "") if not left else ("wrong", f"left behind: {left}")

        yield Case(
            f"kill before change {spot}{'' if again is None else f', then {again}'}", attempt
        )


def _mortal(limit: int) -> Callable[[], None]:
    """Make this process die before the n-th call that changes the disk."""

    def prepare() -> None:
        count = 0

        def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == limit:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return wrapped

        for name in ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir", "link"):
            setattr(os, name, mortal(getattr(os, name)))

    return prepare


def kills_of_saving(world: World, draw: random.Random) -> Iterator[Case]:
    """`save_pretrained` over an older save, and `average`, are killed before one of their changes:
    old or new, never between.
    """
    spots = list(range(1, 60))
    draw.shuffle(spots)
    for spot in spots:

        def attempt(place: Path, spot: int = spot) -> tuple[str, str]:
            from transformers import AutoModelForMaskedLM  # noqa: PLC0415

            folder = world.copy("model", place)

            def save() -> None:
                model = floater.from_pretrained(AutoModelForMaskedLM, folder)
                made = floater.attachment(model)
                assert made is not None
                made.unbake()
                with torch.no_grad():
                    made.encoder.initial.add_(1.0)  # type: ignore[operator]
                _mortal(spot)()
                floater.save_pretrained(model, folder)

            ended = run(save)
            if ended.code not in (0, -9):
                return ended.outcome(), ended.err
            after = run(world.outputs(folder))
            if after.code != 0:
                return "lost", after.err
            old = after.out == world.references["model"]
            return (
                ("right", "")
                if old != (ended.code == 0) or not old
                else ("wrong", "the old model after a whole save")
            )

        yield Case(f"save killed before change {spot}", attempt)


def full_disks(world: World, draw: random.Random) -> Iterator[Case]:
    """No file may grow past a limit, as on a full disk."""
    limits = (0, 10, 500, 2_000, 8_000, 30_000, 60_000)
    while True:
        act = draw.choice(["train", "half", "average", "evaluate", "plot", "report", "save", "rte"])
        limit = draw.choice(limits)

        def attempt(place: Path, act: str = act, limit: int = limit) -> tuple[str, str]:
            def narrow() -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

            if act == "save":
                return _save_on_full_disk(world, place, narrow)
            source = {"half": "half", "rte": "rte"}.get(act, "run")
            folder = world.copy(source, place) if act != "train" else place / "new"
            before = snapshot(folder) if folder.exists() else {}
            ended = run(_full(world, act, folder, place, narrow))
            gone = lost(
                before, snapshot(folder) if folder.exists() else {}, ("metrics.jsonl", "run.json")
            )
            found = ended.outcome()
            if found == "refused" and act == "half":
                again = run(
                    command("train", world.root / "config.yaml", "--out", folder, "--resume")
                )
                if again.code != 0 or not world.same_model(folder):
                    return "lost", again.err
            elif found == "refused" and gone:
                return "lost", f"{gone} {ended.err}"
            return found, ended.err

        yield Case(f"disk full at {limit} bytes a file: {act}", attempt)


def _full(
    world: World, act: str, folder: Path, place: Path, narrow: Callable[[], None]
) -> Callable[[], None]:
    if act in ("train", "half"):
        resume = ("--resume",) if act == "half" else ()
        return command("train", world.root / "config.yaml", "--out", folder, *resume, before=narrow)
    if act == "average":
        return command("average", folder, "--last", 2, before=narrow)
    more: dict[str, tuple[object, ...]] = {
        "plot": ("--out", place / "p.png", "--length", 64),
        "report": ("--out", place / "r.html"),
        "evaluate": ("--name", "again"),
        "rte": ("--name", "again"),
    }
    return command("evaluate" if act == "rte" else act, folder, *more[act], before=narrow)


def _save_on_full_disk(world: World, place: Path, narrow: Callable[[], None]) -> tuple[str, str]:
    from transformers import AutoModelForMaskedLM  # noqa: PLC0415

    folder = world.copy("model", place)
    before = snapshot(folder)

    def save() -> None:
        model = floater.from_pretrained(AutoModelForMaskedLM, folder)
        narrow()
        try:
            floater.save_pretrained(model, folder)
        except floater.FloaterError:
            os._exit(2)

    ended = run(save)
    if ended.code == 2:
        return ("lost" if lost(before, snapshot(folder)) else "refused"), ended.err
    return ended.outcome(), ended.err


def two_at_once(world: World, draw: random.Random) -> Iterator[Case]:
    """Two commands use one folder at the same time."""
    kinds = ["train", "evaluate", "train and evaluate", "average"]
    while True:
        kind, delay = draw.choice(kinds), draw.uniform(0, 1.5)

        def attempt(place: Path, kind: str = kind, delay: float = delay) -> tuple[str, str]:
            train = ("train", world.root / "config.yaml", "--out")
            if kind == "train":
                folder = place / "out"
                works = [command(*train, folder), command(*train, folder, "--set", "seed=7")]
            elif kind == "train and evaluate":
                folder = world.copy("half", place)
                works = [command(*train, folder, "--resume"), command("evaluate", folder)]
            elif kind == "average":
                folder = world.copy("run", place)
                works = [command("average", folder, "--last", 2)] * 2
            else:
                folder = world.copy("run", place)
                works = [command("evaluate", folder, "--name", name) for name in ("one", "two")]
            children = []
            for number, work in enumerate(works):
                children.append(start(work))
                time.sleep(delay if number == 0 else 0)
            ends = [wait(child) for child in children]
            bad = [end for end in ends if end.outcome() not in ("right", "refused")]
            if bad:
                return bad[0].outcome(), bad[0].err
            if kind == "evaluate":
                scores = json.loads((folder / "scores.json").read_text())
                missing = [
                    name
                    for name, end in zip(("one", "two"), ends, strict=True)
                    if end.code == 0 and name not in scores
                ]
                return ("lost", f"scores of {missing}") if missing else ("right", "")
            finished = [end.code == 0 for end in ends]
            if kind == "train":
                if sum(finished) != 1 or "in use by process" not in "".join(
                    end.err for end in ends
                ):
                    seeds = [
                        bool(end.refused() and "holds a run already" in end.err) for end in ends
                    ]
                    if not (sum(finished) == 1 and any(seeds)):
                        return "wrong", "\n".join(end.err for end in ends)
                seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
                return (
                    ("right", "")
                    if (seed == 7) == finished[1]
                    else ("wrong", f"the config says seed {seed}")
                )
            if kind == "average" and not any(finished):
                return "wrong", ends[0].err
            return ("right" if all(finished) else "refused"), ""

        yield Case(f"two at once: {kind}, {delay:.2f} s apart", attempt)


def stops(world: World, draw: random.Random) -> Iterator[Case]:
    """Ctrl-C or SIGTERM at any moment: over within three seconds, no traceback, and the run can go
    on to the same bits.
    """
    while True:
        how, delay = draw.choice([signal.SIGINT, signal.SIGTERM]), draw.uniform(0.0, 3.0)

        def attempt(
            place: Path, how: signal.Signals = how, delay: float = delay
        ) -> tuple[str, str]:
            out = place / "out"
            child = start(command("train", world.root / "config.yaml", "--out", out))
            time.sleep(delay)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.number, how)
            begun = time.monotonic()
            ended = wait(child)
            took = time.monotonic() - begun
            if ended.code is None or took > 3:
                return "hang", f"{took:.1f} s\n{ended.err}"
            if "Traceback" in ended.err:
                return "traceback", ended.err
            resume = ("--resume",) if out.exists() else ()
            again = run(command("train", world.root / "config.yaml", "--out", out, *resume))
            if again.code != 0:
                return "lost", again.err
            return ("right", "") if world.same_model(out) else ("wrong", "other weights")

        yield Case(f"{how.name} after {delay:.2f} s", attempt)


def odd_reports(world: World, draw: random.Random) -> Iterator[Case]:
    """Values of a run's records become something else; a page is made of it."""
    names = ("run.json", "scores.json", "metrics.jsonl", "config.yaml", "results.json")
    while True:
        name, seed = draw.choice(names), draw.randrange(10**6)

        def attempt(place: Path, name: str = name, seed: int = seed) -> tuple[str, str]:
            folder, inner = world.copy(draw.choice(["run", "rte"]), place), random.Random(seed)
            path = folder / name
            if name == "results.json":
                (folder / "config.yaml").unlink()
                table = {"title": "t", "columns": ["a"], "rows": [[1]]}
                found: Any = {"item": "s2l", "scale": "smoke", "title": "x", "tables": [table]}
            elif name == "config.yaml":
                found = yaml.safe_load(path.read_text())
            elif name == "metrics.jsonl":
                found = [json.loads(line) for line in path.read_text().splitlines()]
            else:
                found = json.loads(path.read_text())
            for part in (
                found if isinstance(found, list) else [found]
            ):  # as if the change were the user's own
                part.pop("facts_sha256", None)
                part.pop("crc32", None)
            for _ in range(inner.randrange(1, 4)):
                _mutate(found, inner)
            if name == "metrics.jsonl":
                path.write_text("".join(json.dumps(row) + "\n" for row in found))
            else:
                path.write_text(yaml.dump(found) if name == "config.yaml" else json.dumps(found))
            ended = run(command("report", place, "--out", place / "page.html"))
            if (
                ended.outcome() == "right"
                and b"<script>alert" in (place / "page.html").read_bytes()
            ):
                return "wrong", "a script of the data is in the page"
            return ended.outcome(), ended.err

        yield Case(f"report with odd {name} (seed {seed})", attempt)


def _mutate(found: Any, draw: random.Random) -> None:
    odd = (
        *ODD,
        "<script>alert(1)</script>",
        "\ud800",
        10**400,
        {"score": "x"},
        {"score": float("nan")},
    )
    while True:
        keys = list(found) if isinstance(found, dict) else list(range(len(found)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(found[key], (dict, list)) and found[key] and draw.random() < 0.7:
            found = found[key]
            continue
        found[key] = draw.choice(odd)
        return


def odd_calls(world: World, draw: random.Random) -> Iterator[Case]:
    """The library with odd numbers: an error of its own, or what a plain reference gives."""
    while True:
        seed = draw.randrange(10**9)

        def attempt(place: Path, seed: int = seed) -> tuple[str, str]:
            ended = run(lambda: _call(random.Random(seed)))
            return {0: "right", 2: "refused", 3: "wrong"}.get(
                ended.code or 0, ended.outcome()
            ), ended.err

        yield Case(f"library, seed {seed}", attempt)


def _call(draw: random.Random) -> None:
    from transformers import BertConfig, BertForMaskedLM  # noqa: PLC0415

    torch.manual_seed(draw.randrange(10**6))
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model = (
        BertForMaskedLM(BertConfig(vocab_size=40, max_position_embeddings=30, **shape))
        .eval()
        .double()
    )
    odd: list[Any] = [0, -1, 1.5, float("nan"), float("inf"), None, "x", 10**20, 1e-300, 5]
    config: dict[str, Any] = {"zero_init": False, "initial_scale": 0.5}
    for name in (
        "delta",
        "hidden",
        "init_scale",
        "initial_scale",
        "horizon",
        "rtol",
        "atol",
        "keep_for",
        "pull",
    ):
        if draw.random() < 0.08:
            config[name] = draw.choice(odd)
    length = draw.choice([1, 2, 9, 30])
    ids = torch.randint(3, 40, (2, length))
    given: dict[str, Any] = {}
    if draw.random() < 0.5:
        given["position_ids"] = torch.tensor(
            [[draw.choice([0, 1, 7, 29, 29, 400, 10**7, -1]) for _ in range(length)]]
        )
    try:
        made = floater.attach(
            model,
            floater.FlowConfig(**config),
            sites=draw.choice(["input", "blocks", "qkv"]),
            positions=draw.choice(["keep", "replace"]),
            indices=draw.choice(["model", "mask"]),
        )
        if draw.random() < 0.4:
            made.bake(draw.choice([1, 9, 64, 0, 10**13]))
        with torch.no_grad():
            out = model(input_ids=ids, attention_mask=torch.ones_like(ids), **given).logits
            rows = (
                given["position_ids"][0]
                if made.indices == "model" and given
                else torch.arange(length)
            )
            with made.at(rows * made.delta):
                again = model(input_ids=ids, attention_mask=torch.ones_like(ids), **given).logits
    except floater.FloaterError as error:
        sys.exit(2 if "\n" not in str(error) else 1)
    except (
        IndexError,
        RuntimeError,
    ) as error:  # the model's own, for positions that its own table does not have
        odd_ids = (
            bool(given)
            and not 0 <= int(given["position_ids"].min()) <= int(given["position_ids"].max()) < 30
        )
        if not (
            odd_ids
            and "floater" not in traceback.format_exc().splitlines()[-3]
            and "out of" in str(error)
        ):
            raise
        sys.exit(2)
    if not bool(torch.isfinite(out).all()) or not torch.allclose(out, again, rtol=1e-6, atol=1e-6):
        print(f"{config} {given} differs by {(out - again).abs().max()}", file=sys.stderr)
        sys.exit(3)


FAMILIES: dict[str, tuple[int, Callable[[World, random.Random], Iterator[Case]]]] = {
    "damaged runs": (90, damaged_runs),
    "damaged models": (60, damaged_models),
    "odd configs": (60, odd_configs),
    "kills": (25, kills),
    "kills of saving": (30, kills_of_saving),
    "full disks": (35, full_disks),
    "two at once": (14, two_at_once),
    "stops": (14, stops),
    "odd reports": (60, odd_reports),
    "odd calls": (60, odd_calls),
}
"""Families of cases, each with how many it has in a full round."""


def torture(
    seconds: float, seed: int, only: Sequence[str] = (), tell: Callable[[str], None] = print
) -> Counter[tuple[str, str]]:
    """Run cases until the time is over or a full round is done.

    Args:
        seconds: how long, the making of the world included.
        seed: of all draws.
        only: families; all unless given.
        tell: where to say what failed.

    Returns:
        Counts by family and outcome.
    """
    begun = time.monotonic()
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="torture-") as root:
        world = World(Path(root))
        chosen = {name: family for name, family in FAMILIES.items() if not only or name in only}
        todo = {
            name: make(world, random.Random(f"{seed} {name}")) for name, (_, make) in chosen.items()
        }
        left = {name: count for name, (count, _) in chosen.items()}
        while any(left.values()) and time.monotonic() - begun < seconds:
            name = max(
                left, key=lambda one: left[one] / chosen[one][0]
            )  # all families at the same pace
            left[name] -= 1
            case = next(todo[name], None)
            if case is None:
                left[name] = 0
                continue
            with tempfile.TemporaryDirectory(prefix="case-", dir=root) as place:
                outcome, seen = case.attempt(Path(place))
            counts[name, outcome] += 1
            if outcome in FAILURES:
                tell(
                    f"{outcome.upper()} in {name}: {case.name}\n    "
                    + "\n    ".join(seen.strip().splitlines()[-12:])
                )
    return counts


def table(counts: Counter[tuple[str, str]]) -> str:
    """Counts as text."""
    names = list(dict.fromkeys(name for name, _ in counts))
    rows = [f"{'':16}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES)]
    for name in [*names, "all"]:
        found = [
            sum(
                number
                for (family, what), number in counts.items()
                if what == outcome and name in (family, "all")
            )
            for outcome in OUTCOMES
        ]
        rows.append(f"{name:16}" + "".join(f"{number:>11}" for number in found))
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=570,
        help="stop after so many seconds (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default: %(default)s)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=list(FAMILIES),
        help="a family of cases; may be repeated",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    counts = torture(given.seconds, given.seed, given.only)
    print(table(counts))
    failed = sum(number for (_, outcome), number in counts.items() if outcome in FAILURES)
    total = sum(counts.values())
    print(f"{total - failed} passed, {failed} failed")
    sys.exit(1 if failed or not total else 0)


if __name__ == "__main__":
    main()
