"""Callbacks of the Trainer: progress and metrics, early stopping, a clock, fewer updates of the
attachment.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as ProgressBar
from torch import nn
from transformers import (
    EarlyStoppingCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ..attachments import attachment
from ..encoders import Flow
from ..errors import ArgumentError, AttachmentError
from ..runs.folder import RunFolder

_LABELS = {"bleu": "BLEU", "f1": "F1", "loss": "valid"}
_MISLEADING = {"train_samples_per_second", "total_flos"}
"""The Trainer computes these from a batch size it does not know."""
_COUNTER = "early_stopping_patience_counter"
"""Name of the callback's counter in a checkpoint."""


class CountsTokens(Protocol):
    """A Trainer that counts the tokens it has trained on."""

    tokens: int


class Progress(TrainerCallback):
    """A progress bar with loss, speed and remaining time on a terminal, plain lines elsewhere, and
    metrics as JSON lines.

    Args:
        folder: the run's.
        console: where to show it.
        metric: the main metric of validations.
    """

    def __init__(self, folder: RunFolder, console: Console, metric: str) -> None:
        self._folder, self._console, self._metric = folder, console, metric
        self._bar: ProgressBar | None = None
        self._task: TaskID | None = None
        self._tokens, self._since, self._speed = 0, time.perf_counter(), 0.0
        self._words: dict[str, str] = {}
        self.trainer: CountsTokens | None = None
        """Set as soon as the Trainer exists; it counts the tokens."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the progress bar."""
        self._tokens, self._since = 0, time.perf_counter()
        if not state.is_world_process_zero or not self._console.is_terminal:
            return
        self._bar = ProgressBar(
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
        """Advance the progress bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Write a line of metrics, and show the latest values."""
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
            if evaluations := _evaluations(model):
                row["evaluations"] = evaluations
        elif "eval_seconds" in row:
            self._since += float(row["eval_seconds"])  # the speed is that of training alone
        self._folder.log({"step": state.global_step, "time": round(time.time(), 2), **row})
        self._show(state, row)

    def _show(self, state: TrainerState, row: dict[str, Any]) -> None:
        metric = self._metric
        known = {
            "loss": "loss",
            f"eval_{metric}": _LABELS.get(metric, metric),
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
        elif {"loss", "eval_loss", f"eval_{metric}"} & row.keys():
            self._console.print(
                f"update {state.global_step:,} of {state.max_steps:,}: {words}", highlight=False
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the progress bar."""
        self.close()

    def close(self) -> None:
        """Release the terminal, also after an error."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _evaluations(model: nn.Module | None) -> int:
    """How often the flows of a model evaluated h in their last solves."""
    modules = () if model is None else model.modules()
    return sum(module.evaluations for module in modules if isinstance(module, Flow))


class TrainingClock(TrainerCallback):
    """The training time of a run over all its starts, recorded with every checkpoint.

    Args:
        folder: the run's.
        earlier: seconds of earlier starts.
    """

    def __init__(self, folder: RunFolder, earlier: float) -> None:
        self._folder, self._earlier = folder, earlier
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Seconds of this start and the earlier ones."""
        return round(self._earlier + time.perf_counter() - self._started, 1)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record the time, so that a killed run does not lose it."""
        if state.is_world_process_zero:
            self._folder.note(training_seconds=self.seconds())


class Patience(EarlyStoppingCallback):
    """Stop after `patience` evaluations without improvement.

    The task chooses the weights, so the Trainer does not load the best ones.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Skip the warning about weights that are not loaded."""

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Stop with a checkpoint: a run is resumed and finished from its checkpoints."""
        base: Any = super()
        base.on_evaluate(args, state, control, metrics, **kwargs)
        if control.should_training_stop:
            control.should_save = True

    @staticmethod
    def waited(state: dict[str, Any]) -> int:
        """Evaluations without improvement so far, from the state of a checkpoint."""
        saved = state.get("stateful_callbacks", {}).get(Patience.__name__, {})
        return int(saved.get("attributes", {}).get(_COUNTER, 0)) if isinstance(saved, dict) else 0


class UpdateEvery(TrainerCallback):
    """Train the attachment in every k-th optimiser step only (§4.4 of the paper).

    In the other steps it is frozen and costs no backward pass. The default everywhere is k = 1:
    one solve and one backward pass per step leave little to save. The Trainer's step count decides
    which steps train, so a resumed run continues in the same rhythm.
    """

    def __init__(self, steps: int) -> None:
        if not isinstance(steps, int) or steps < 1:
            raise ArgumentError(f"`steps` must be a positive integer, but is {steps!r}.")
        self.steps = steps

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Freeze or unfreeze the attachment for this step."""
        _attachment(kwargs["model"]).requires_grad_(state.global_step % self.steps == 0)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the attachment trainable."""
        _attachment(kwargs["model"]).requires_grad_(True)


def _attachment(model: nn.Module) -> nn.Module:
    attached = attachment(model)
    if attached is None:
        raise AttachmentError("The model has no attachment; call floater.attach first.")
    return attached
