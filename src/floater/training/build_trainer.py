"""A Trainer put together from settings, a loader and a way to measure."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Literal

from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from .patience import Patience
from .progress import Progressing
from .records import RunFolder
from .settings import Pace, TrainingSettings
from .start import on_cpu
from .trainer import SafeTrainer
from .update_every import UpdateEvery

Schedule = Literal["inverse_sqrt", "linear", "constant_with_warmup"]


def arguments(
    training: TrainingSettings,
    pace: Pace,
    folder: RunFolder,
    *,
    seed: int,
    metric: str,
    more_is_better: bool = True,
    schedule: Schedule = "inverse_sqrt",
) -> TrainingArguments:
    """The Trainer's arguments.

    Args:
        training: how to train.
        pace: how long, and when to look and to save.
        folder: the run's.
        seed: of the run.
        metric: name of the measure that tells which checkpoint is best.
        more_is_better: of that measure; False for a loss.
        schedule: how the learning rate goes on after the warm-up.
    """
    return TrainingArguments(
        output_dir=str(folder.checkpoints),
        max_steps=pace.updates,
        gradient_accumulation_steps=training.accumulate,
        learning_rate=training.lr,
        lr_scheduler_type=schedule,
        warmup_steps=pace.warmup,
        max_grad_norm=training.clip,
        bf16=training.precision == "bf16",
        fp16=training.precision == "fp16",
        eval_strategy="steps",
        eval_steps=pace.evaluate_every,
        save_strategy="steps",
        save_steps=pace.save_every,
        save_total_limit=None,
        logging_steps=training.log_every,
        # it would log the mean of earlier losses in place of one that is not finite
        logging_nan_inf_filter=False,
        report_to=[],
        metric_for_best_model=metric,
        greater_is_better=more_is_better,
        restore_callback_states_from_checkpoint=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=seed,
        dataloader_pin_memory=False,
        use_cpu=on_cpu(),
    )


def assemble(
    training: TrainingSettings,
    arguments: TrainingArguments,
    *,
    model: nn.Module,
    data: Sized,
    loader: Callable[[], DataLoader[Any]],
    measure: Callable[[nn.Module], dict[str, float]],
    folder: RunFolder,
    console: Console,
    **kwargs: Any,
) -> SafeTrainer:
    """The Trainer of a run, with its progress bar, metrics, TensorBoard curves and patience.

    Args:
        training: how to train.
        arguments: the Trainer's; see `arguments`.
        model: what to train.
        data: the training set.
        loader: makes the training DataLoader; it must shard itself over processes.
        measure: looks at the validation set; returns metrics without prefix.
        folder: the run's.
        console: where to show the progress.
        **kwargs: the Trainer's own.
    """
    progress = Progressing(folder, console)
    trainer = SafeTrainer(
        loader=loader,
        measure=measure,
        keep=training.keep,
        groups=training.groups(),
        freeze_flow=training.freeze_flow,
        betas=training.betas,
        eps=training.eps,
        model=model,
        args=arguments,
        train_dataset=data,
        # the stock Trainer insists on one; `measure` looks at the validation set
        eval_dataset=data,
        callbacks=[progress],
        **kwargs,
    )
    progress.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if training.tensorboard and arguments.process_index == 0:
        _to_tensorboard(trainer, folder)
    if training.update_every > 1:
        trainer.add_callback(UpdateEvery(training.update_every))
    if training.patience is not None:
        trainer.add_callback(Patience(early_stopping_patience=training.patience))
    return trainer


def _to_tensorboard(trainer: SafeTrainer, folder: RunFolder) -> None:
    """Write curves for TensorBoard too, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (optional)
    except ImportError:
        return
    trainer.add_callback(TensorBoardCallback(SummaryWriter(str(folder.path / "tensorboard"))))
