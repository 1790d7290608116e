"""A run of an understanding task: prepare, train, measure; with an encoder or without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn
from transformers import PreTrainedTokenizerBase, set_seed

from ...attachments import attachment
from ...errors import RunError
from ...recipes import read
from ...training.build_trainer import arguments, assemble
from ...training.drive import drive, settle, speaker
from ...training.loader import EpochLoader
from ...training.locking import in_use
from ...training.records import CONFIG, RunFolder
from ...training.settings import Pace
from ...training.start import FREE, check_start
from ...training.trainer import SafeTrainer, sweep
from .batches import LengthBatches
from .config import UnderstandingConfig
from .evaluation import describe, evaluate, finish
from .models import build, choose, load_tokenizer, locate, parameters, resolved
from .predicting import answers
from .problem import Features, Part, Problem

_FREE = FREE - {"updates"} | {"keep_model", "keep_checkpoints", "threads"}
"""Training settings that do not change the course of a run.

Its end does: the learning rate falls towards it.
"""


@dataclass(frozen=True)
class Prepared:
    """Everything that is read and checked before training starts."""

    problem: Problem[Any, Any]
    tokenizer: PreTrainedTokenizerBase
    where: str
    parts: dict[str, Part]
    train: Features
    valid: Features

    def batches(self, processes: int = 1, process: int = 0) -> LengthBatches:
        """The batches of the training set."""
        config = self.problem.config
        return LengthBatches(
            self.train.lengths(),
            config.training.batch,
            config.seed,
            processes=processes,
            process=process,
            follow=getattr(self.train, "set_epoch", None),
        )


def prepare(problem: Problem[Any, Any]) -> Prepared:
    """Read, check and encode the data."""
    where = locate(problem.config.model.name)
    tokenizer = load_tokenizer(where)
    parts = problem.parts()
    return Prepared(
        problem,
        tokenizer,
        where,
        parts,
        problem.encode(parts["train"], tokenizer, training=True),
        problem.encode(parts["valid"], tokenizer, training=False),
    )


def _before(config: UnderstandingConfig, path: Path) -> dict[str, Any]:
    """The settings that a run folder was started with."""
    found = read(path / CONFIG)
    if found.get("task") != config.task:
        raise RunError(
            f"{path} must hold a run of {config.task}, but holds one of {found.get('task')}; choose"
            " another folder."
        )
    return type(config)(**found).dump()


def start(prepared: Prepared) -> nn.Module:
    """The model a run starts from: seeded, with what is not trained frozen."""
    config = prepared.problem.config
    set_seed(config.seed)
    model = build(prepared.problem, prepared.where)
    if config.training.part == "head":
        prepared.problem.prime(model, prepared.train)
    choose(model, config.training.part)
    return model


def train(
    kind: type[Problem[Any, Any]],
    config: UnderstandingConfig,
    path: Path,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Train, measure on every set; all of it in a run folder.

    Args:
        kind: the task.
        config: its settings.
        path: the run folder.
        resume: go on where an earlier start of the same run was stopped.
        console: where to tell what happens.
    """
    with in_use(path, "train", create=True):
        return _train(kind, config, RunFolder(path), resume=resume, console=speaker(console))


def _train(
    kind: type[Problem[Any, Any]],
    config: UnderstandingConfig,
    folder: RunFolder,
    *,
    resume: bool,
    console: Console,
) -> RunFolder:
    config = resolved(config)
    before = _before(config, folder.path) if (folder.path / CONFIG).exists() else None
    settings = {key: value for key, value in config.dump().items() if key != "compare"}
    check_start(folder, settings, before, resume=resume, console=console, free=_FREE)
    if folder.facts().get("finished"):
        console.print(f"{folder.path} is finished", highlight=False, markup=False)
        return folder
    settle(config.training)
    console.print("reading and encoding the data …", highlight=False)
    prepared = prepare(kind(config))
    same_data(folder, prepared.parts)
    model = start(prepared)
    if extrapolation := beyond(model, config, int(prepared.train.lengths().max())):
        console.print(extrapolation, highlight=False, markup=False, soft_wrap=True)
    if config.training.part == "nothing":
        _begin(folder, prepared, model, console, processes=1)
        for name, part in prepared.parts.items():
            if name != "train":
                scores = evaluate(
                    prepared.problem,
                    model.eval(),
                    part,
                    prepared.tokenizer,
                    folder,
                    name=name,
                    console=console,
                )
                console.print(
                    f"{name}: {describe(scores)}", highlight=False, markup=False, soft_wrap=True
                )
        folder.note(finished=True)
        return folder
    pace = config.training.pace(len(prepared.batches()))
    trainer = make_trainer(prepared, model, pace, folder, console)
    if trainer.is_world_process_zero():
        _begin(folder, prepared, model, console, processes=trainer.args.world_size)
    patience = config.training.patience
    drive(
        trainer,
        folder,
        seed=config.seed,
        updates=pace.updates,
        patience=patience,
        resume=resume,
        console=console,
    )
    if trainer.is_world_process_zero():
        finish(prepared.problem, folder, prepared.parts, prepared.tokenizer, console)
    trainer.accelerator.wait_for_everyone()
    return folder


def beyond(model: nn.Module, config: UnderstandingConfig, longest: int) -> str | None:
    """A warning, where a law of motion is taken further than its own run trained it.

    Args:
        model: with the law, as training begins.
        config: says where the law is from.
        longest: tokens of the longest training input.
    """
    trained = None if config.dynamics is None else RunFolder(config.dynamics).facts().get("longest")
    made = attachment(model)
    if (
        trained is None
        or trained >= longest
        or made is None
        or (table := made.site_tables(longest)) is None
    ):
        return None
    there, here = (float(table[at - 1].norm(dim=-1).mean()) for at in (trained, longest))
    return (
        f"warning: {config.dynamics} was trained on inputs of up to {trained} tokens, but these "
        f"have up to {longest}: past them its law leads where nothing was learned (length of "
        f"encodings {there:.1f} at token {trained}, {here:.1f} at {longest}); train the law on "
        "inputs as long as these, or lower `max_length`."
    )


def make_trainer(
    prepared: Prepared, model: nn.Module, pace: Pace, folder: RunFolder, console: Console
) -> SafeTrainer:
    """The Trainer of a run, and its look at the validation set."""
    problem, config = prepared.problem, prepared.problem.config
    args = arguments(
        config.training,
        pace,
        folder,
        seed=config.seed,
        metric=problem.main,
        more_is_better=problem.more_is_better,
        schedule="linear",
    )
    collate = problem.collate(prepared.tokenizer)
    share = {"processes": args.world_size, "process": args.process_index}

    def loader() -> EpochLoader:
        return EpochLoader(prepared.train, prepared.batches(**share), collate, config.seed)

    def measure(model: nn.Module) -> dict[str, float]:
        found = answers(problem, model, prepared.valid, prepared.tokenizer, **share)
        return problem.scores(problem.judge(prepared.parts["valid"], prepared.valid, found).table)

    return assemble(
        config.training,
        args,
        model=model,
        data=prepared.train,
        loader=loader,
        measure=measure,
        folder=folder,
        console=console,
        loss=problem.loss,
        fused=True,
    )


def same_data(folder: RunFolder, parts: dict[str, Part]) -> None:
    """Refuse to go on with a run whose files have changed since it was started."""
    for name, before in folder.facts().get("data", {}).items():
        now = parts[name].fingerprint() if name in parts else {}
        if before.get("sha256") != now.get("sha256"):
            raise RunError(
                f"{folder.path} was started with other {name} data ({before.get('from')}), which "
                "has changed since; bring the old files back, or choose another --out."
            )


def _begin(
    folder: RunFolder, prepared: Prepared, model: nn.Module, console: Console, *, processes: int
) -> None:
    sweep(folder)
    config, batches = prepared.problem.config, prepared.batches()
    counts = parameters(model)
    folder.begin(
        config.dump(),
        {
            "data": {name: part.fingerprint() for name, part in prepared.parts.items()},
            "seed": config.seed,
            "positions": config.positions.described(),
            **counts,
            "training_inputs": len(prepared.train),
            "longest": int(prepared.train.lengths().max()),
            "batches_an_epoch": len(batches),
            "padding": round(batches.padding(), 4),
            "processes": processes,
        },
    )
    console.print(
        f"{len(prepared.train):,} inputs in {len(batches):,} batches an epoch "
        f"({100 * batches.padding():.1f} % padding); {counts['parameters']:,} parameters, "
        f"{counts['trained_parameters']:,} of them trained, {counts['position_parameters']:,} for "
        f"positions ({config.positions.described()})",
        highlight=False,
    )
