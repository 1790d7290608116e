"""The Trainer of a run, built from its task."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from torch import nn
from transformers import TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ..errors import ConfigError
from ..runs.folder import RunFolder
from .callbacks import Patience, Progress, UpdateEvery
from .process import on_cpu
from .settings import Pace
from .task import Task, TaskData
from .trainer import SafeTrainer
from .world import World


def build_trainer(
    task: Task[Any], data: TaskData, model: nn.Module, folder: RunFolder, console: Console
) -> SafeTrainer:
    """The Trainer of a run, with progress bar, metrics, TensorBoard curves and early stopping.

    Args:
        task: what to train.
        data: its prepared data.
        model: at the start of training.
        folder: the run's.
        console: where to show the progress.
    """
    training = task.config.training
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "The run must have weights to train, but has none: the base is frozen, and the encoder "
            "has no weights of its own; choose another encoder, or `part: all` in `training`."
        )
    arguments = training_arguments(task, task.pace(data), folder)
    world = World(arguments.world_size, arguments.process_index)
    progress = Progress(folder, console, task.main)
    trainer = SafeTrainer(
        loader=lambda: task.loader(data, world),
        measure=lambda model: task.measure(model, data, world),
        keep=training.keep,
        groups=training.groups(),
        freeze_flow=training.freeze_flow,
        betas=training.betas,
        eps=training.eps,
        loss=task.loss_function(),
        fused=task.fused_optimizer,
        model=model,
        args=arguments,
        train_dataset=data.train,
        eval_dataset=data.train,  # the stock Trainer requires one; `measure` evaluates instead
        callbacks=[progress],
    )
    progress.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if training.tensorboard and arguments.process_index == 0:
        _add_tensorboard(trainer, folder)
    if training.update_every > 1:
        trainer.add_callback(UpdateEvery(training.update_every))
    if training.patience is not None:
        trainer.add_callback(Patience(early_stopping_patience=training.patience))
    return trainer


def training_arguments(task: Task[Any], pace: Pace, folder: RunFolder) -> TrainingArguments:
    """The Trainer's arguments.

    Args:
        task: what to train.
        pace: how long, and when to evaluate and save.
        folder: the run's.
    """
    training = task.config.training
    return TrainingArguments(
        output_dir=str(folder.checkpoints),
        max_steps=pace.updates,
        gradient_accumulation_steps=training.accumulate,
        learning_rate=training.lr,
        lr_scheduler_type=task.schedule,
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
        # only patience asks for it, and a validation may do without
        metric_for_best_model=None if training.patience is None else task.main,
        greater_is_better=task.more_is_better,
        restore_callback_states_from_checkpoint=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=task.config.seed,
        dataloader_pin_memory=False,
        use_cpu=on_cpu(),
    )


def _add_tensorboard(trainer: SafeTrainer, folder: RunFolder) -> None:
    """Also write curves for TensorBoard if it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (optional)
    except ImportError:
        return
    trainer.add_callback(TensorBoardCallback(SummaryWriter(str(folder.path / "tensorboard"))))
