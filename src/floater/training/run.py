"""The life of a run, whatever is trained: prepare, train or resume, choose the weights, evaluate.

`run` is the only entry point. It knows no task; a task implements `Task`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from transformers import set_seed

from ..encoders import Flow, kernel_is_missing
from ..printing import print_text
from ..runs.folder import RunFolder
from ..runs.locks import in_use
from .build_trainer import build_trainer
from .callbacks import Progress, TrainingClock
from .checkpoints import checkpoints, remove_incomplete, step_of
from .process import expecting_long_inputs, main_console, on_cpu, process_settings
from .resume import check_data, check_start, reached_end
from .task import Task, TaskData
from .trainer import SafeTrainer


def run(
    task: Task[Any], path: Path, *, resume: bool = False, console: Console | None = None
) -> RunFolder:
    """Train a task into a run folder and evaluate the result.

    A run may be killed at any moment. Resumed, it ends in the same weights, bit for bit.

    Args:
        task: what to train.
        path: the run folder.
        resume: continue an earlier start of the same run, if there is one.
        console: where to print progress; stderr by default.
    """
    printer = main_console(console)
    task.check(path)
    task = task.prepare_dependencies(path / "head", printer)
    with (
        in_use(path, "train", create=True),
        process_settings(task.config.training.threads),
        expecting_long_inputs(),
    ):
        return _run(task.resolve(), RunFolder(path), resume=resume, console=printer)


def _run(task: Task[Any], folder: RunFolder, *, resume: bool, console: Console) -> RunFolder:
    check_start(task, folder, resume=resume, console=console)
    if task.is_finished(folder):
        print_text(console, f"{folder.path} is finished")
        return folder
    print_text(console, "reading and encoding the data …")
    data = task.prepare(folder)
    check_data(folder, data.fingerprints)
    set_seed(task.config.seed)
    model = task.build_model(data)
    warnings = [*task.warnings(model, data), *_slow_solves(model, task.config.training.freeze_flow)]
    for warning in warnings:
        print_text(console, f"warning: {warning}")
    if not task.trains:
        _begin(task, folder, data, model, console, processes=1)
        _finish(task, folder, data, model.eval(), console)
        return folder
    trainer = build_trainer(task, data, model, folder, console)
    if trainer.is_world_process_zero():
        _begin(task, folder, data, model, console, processes=trainer.args.world_size)
    _train(task, trainer, folder, updates=task.pace(data).updates, resume=resume, console=console)
    if trainer.is_world_process_zero():
        _finish(task, folder, data, task.final_model(folder), console)
    trainer.accelerator.wait_for_everyone()
    return folder


def _slow_solves(model: nn.Module, frozen: bool) -> list[str]:
    """What to do about flows that train on a CPU without the compiled kernel."""
    flows = (module for module in model.modules() if isinstance(module, Flow))
    trained = any(weight.requires_grad for flow in flows for weight in flow.parameters())
    if frozen or not trained or not on_cpu() or not kernel_is_missing():
        return []
    return [
        "floater's compiled kernel is not there, so tensor operations solve the flow, which takes "
        "about twice as long; with a C compiler, install floater again"
    ]


def _begin(
    task: Task[Any],
    folder: RunFolder,
    data: TaskData,
    model: nn.Module,
    console: Console,
    *,
    processes: int,
) -> None:
    """Record what the run is made from."""
    remove_incomplete(folder)
    facts = {
        "data": {name: dict(fingerprint) for name, fingerprint in data.fingerprints.items()},
        "seed": task.config.seed,
        "positions": task.config.positions.described(),
        **task.facts(model, data),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "finished": False,
    }
    folder.path.mkdir(parents=True, exist_ok=True)
    task.begin(folder, data)
    folder.begin(task.config.dump(), facts)
    print_text(console, task.describe(facts))


def _train(
    task: Task[Any],
    trainer: SafeTrainer,
    folder: RunFolder,
    *,
    updates: int,
    resume: bool,
    console: Console,
) -> None:
    """Train to the end, from the latest checkpoint if the run is resumed."""
    trainer.accelerator.wait_for_everyone()
    latest = checkpoints(folder.checkpoints)[-1:] if resume else []
    if latest:
        print_text(console, f"resuming after update {step_of(latest[0]):,}")
    elif resume:
        print_text(console, "no checkpoint to resume from: starting with the first update")
    if trainer.is_world_process_zero():
        folder.rewind(step_of(latest[0]) if latest else -1)
    set_seed(task.config.seed)
    if latest and reached_end(latest[0], updates, task.config.training.patience):
        return
    clock = TrainingClock(folder, folder.facts().get("training_seconds", 0.0) if latest else 0.0)
    trainer.add_callback(clock)
    try:
        trainer.train(resume_from_checkpoint=str(latest[0]) if latest else None)
    finally:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, Progress):
                callback.close()
    trainer.save_unless_saved()
    if trainer.is_world_process_zero():
        folder.note(
            training_seconds=clock.seconds(),
            updates=trainer.state.global_step,
            peak_memory_mb=peak_memory(),
        )


def _finish(
    task: Task[Any], folder: RunFolder, data: TaskData, model: nn.Module, console: Console
) -> None:
    task.finish(folder, data, model, console)
    folder.note(finished=True)
    task.clean_up(folder)  # only now: without checkpoints, an unfinished run would start over


def peak_memory() -> float | None:
    """The largest amount of memory this process has held, in MB; None if the system cannot tell."""
    try:
        import resource  # noqa: PLC0415  (not on Windows)
    except ImportError:
        return None
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)
