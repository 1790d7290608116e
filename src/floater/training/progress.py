"""What is seen and written while a run trains."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .records import RunFolder

if TYPE_CHECKING:
    from .trainer import SafeTrainer


_WRITTEN = {"bleu": "BLEU", "f1": "F1", "loss": "valid"}
_MISLEADING = {
    "train_samples_per_second",
    "total_flos",
}  # the Trainer does not know how large our batches are


class Progressing(TrainerCallback):
    """A bar with loss, tokens a second and the time left on a terminal, plain lines elsewhere;
    metrics as JSON lines.
    """

    def __init__(self, folder: RunFolder, console: Console) -> None:
        self._folder, self._console = folder, console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._tokens, self._since, self._speed = 0, time.perf_counter(), 0.0
        self._words: dict[str, str] = {}
        self.trainer: SafeTrainer | None = None
        """Set once the Trainer exists: it counts the tokens."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar."""
        self._tokens, self._since = 0, time.perf_counter()
        if not state.is_world_process_zero or not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bar.start()
        self._task = self._bar.add_task(
            "training", total=state.max_steps, completed=state.global_step, words=""
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write a line of metrics, and show the latest."""
        if not state.is_world_process_zero or not logs:
            return
        row = {
            key: value
            for key, value in logs.items()
            if isinstance(value, int | float) and key not in _MISLEADING
        }
        if "loss" in row and self.trainer is not None:
            now, tokens = time.perf_counter(), self.trainer.tokens
            self._speed = (tokens - self._tokens) / max(now - self._since, 1e-9) * args.world_size
            self._tokens, self._since = tokens, now
            row["tokens_per_second"] = round(self._speed, 1)
        elif "eval_seconds" in row:
            self._since += float(
                row["eval_seconds"]
            )  # looking at the validation set is not training
        self._folder.log({"step": state.global_step, "time": round(time.time(), 2), **row})
        self._show(state, row, str(args.metric_for_best_model))

    def _show(self, state: TrainerState, row: dict[str, Any], metric: str) -> None:
        known = {
            "loss": "loss",
            f"eval_{metric}": _WRITTEN.get(metric, metric),
            "eval_loss": "valid",
            "tokens_per_second": "tokens/s",
        }
        for key, label in known.items():
            if key in row:
                self._words[label] = (
                    f"{row[key]:,.0f}" if key == "tokens_per_second" else f"{row[key]:.3f}"
                )
        words = " · ".join(f"{label} {value}" for label, value in self._words.items())
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, words=words)
        elif "loss" in row or "eval_loss" in row:
            self._console.print(
                f"update {state.global_step:,} of {state.max_steps:,}: {words}", highlight=False
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Give the terminal back, also where training ends with an error."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
