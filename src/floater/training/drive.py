"""The course of a run, whatever is trained: from its latest checkpoint on, and to its end."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.utils import logging

from .progress import Progressing
from .records import RunFolder, peak_memory
from .settings import TrainingSettings
from .start import finished
from .trainer import SafeTrainer, checkpoints, step_of


def speaker(console: Console | None) -> Console:
    """Where a run tells what happens: one process speaks for all."""
    return (
        (console or Console(stderr=True, markup=False))
        if os.environ.get("RANK", "0") == "0"
        else Console(quiet=True)
    )


def settle(training: TrainingSettings) -> None:
    """What a run sets for its whole process."""
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.set_flush_denormal(True)
    logging.disable_progress_bar()  # bars of loading and saving would break ours


def drive(
    trainer: SafeTrainer,
    folder: RunFolder,
    *,
    seed: int,
    updates: int,
    patience: int | None,
    resume: bool,
    console: Console,
) -> None:
    """Train to the end, from the latest checkpoint on if the run is resumed.

    Args:
        trainer: of the run.
        folder: the run's.
        seed: of the run; the random state is set to it here.
        updates: where the end is.
        patience: or after how many looks without a better score.
        resume: whether to go on with what the folder holds.
        console: where to tell what happens.
    """
    trainer.accelerator.wait_for_everyone()
    latest = checkpoints(folder.checkpoints)[-1:] if resume else []
    if latest:
        console.print(f"going on after update {step_of(latest[0]):,}", highlight=False)
    elif resume:
        console.print(
            "there is no checkpoint to go on from: beginning with the first update", highlight=False
        )
    if trainer.is_world_process_zero():
        folder.rewind(step_of(latest[0]) if latest else -1)
    set_seed(seed)
    if latest and finished(latest[0], updates, patience):
        return
    clock = _Clock(folder, folder.facts().get("training_seconds", 0.0) if latest else 0.0)
    trainer.add_callback(clock)
    try:
        trainer.train(resume_from_checkpoint=str(latest[0]) if latest else None)
    finally:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, Progressing):
                callback.close()
    trainer.save_unless_saved()
    if trainer.is_world_process_zero():
        folder.note(
            training_seconds=clock.seconds(),
            updates=trainer.state.global_step,
            peak_memory_mb=peak_memory(),
        )


class _Clock(TrainerCallback):
    """How long a run has trained, over all its starts: noted with every checkpoint, so that a kill
    does not lose it.
    """

    def __init__(self, folder: RunFolder, earlier: float) -> None:
        self._folder, self._earlier = folder, earlier
        self._begun = time.perf_counter()

    def seconds(self) -> float:
        """Of this start and those before it."""
        return round(self._earlier + time.perf_counter() - self._begun, 1)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note it."""
        if state.is_world_process_zero:
            self._folder.note(training_seconds=self.seconds())
