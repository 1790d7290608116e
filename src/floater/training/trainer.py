"""transformers' Trainer with atomic, complete checkpoints and checks against divergence."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer

from ..errors import RunError
from ..files import publish, reading, record_hashes, writing
from .checkpoints import (
    GO_BACK,
    PREFIX,
    SOLUTIONS,
    checkpoints,
    load_solutions,
    save_solutions,
    step_of,
)
from .groups import freeze_flow as freeze_attachment
from .groups import parameter_groups
from .sweeps import flows_of, stop, sweep


class SafeTrainer(Trainer):
    """A Trainer that can be killed at any moment and resumed to the same weights, bit for bit.

    Args:
        loader: creates the training DataLoader, which must shard itself over processes.
        measure: replaces the stock evaluation; returns metrics without prefix.
        keep: number of checkpoints to keep, besides the best.
        groups: keyword arguments of `parameter_groups` except `lr`.
        freeze_flow: train the base only.
        betas, eps: of Adam.
        loss: the loss of a batch, summed over its labels; None uses the model's own.
        fused: update all weights in one pass; rounding differs slightly.
        **kwargs: arguments of the Trainer.
    """

    def __init__(
        self,
        *,
        loader: Callable[[], DataLoader[Any]],
        measure: Callable[[nn.Module], dict[str, float]],
        keep: int,
        groups: dict[str, Any],
        betas: tuple[float, float],
        eps: float,
        freeze_flow: bool = False,
        loss: Callable[[nn.Module, dict[str, Any]], Tensor] | None = None,
        fused: bool = False,
        **kwargs: Any,
    ) -> None:
        self._make_loader, self._measure, self._keep = loader, measure, keep
        self._groups, self._betas, self._eps = groups, betas, eps
        self._loss, self._fused, self._freeze_flow = loss, fused, freeze_flow
        self._temporary: Path | None = None
        self.tokens = 0
        super().__init__(**kwargs)
        if loss is not None:
            # The Trainer then counts the labels of all batches of an update, by which
            # `compute_loss` divides.
            self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True

    @property
    def _bare(self) -> nn.Module:
        """The model, not wrapped for distributed training."""
        assert self.model is not None
        return self.model

    @property
    def _accumulates(self) -> bool:
        return self.args.gradient_accumulation_steps > 1

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)
        finally:  # stopped between two micro-batches, a model would go on collecting
            stop(flows_of(self._bare))

    # Data, optimiser, evaluation ------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self._make_loader()

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            if self._freeze_flow:
                freeze_attachment(self._bare)
            groups = parameter_groups(
                self._bare, lr=self.args.learning_rate, required=False, **self._groups
            )
            settings: dict[str, Any] = {
                "lr": self.args.learning_rate,
                "betas": self._betas,
                "eps": self._eps,
                "fused": self._fused or None,
            }
            self.optimizer = torch.optim.AdamW(groups, **settings)
        return self.optimizer

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        model = self._bare
        training = model.training
        begun = time.perf_counter()
        model.eval()
        try:
            metrics = self._measure(model)
        finally:
            model.train(training)
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise RunError(
                    self._divergence_message(
                        f"The validation {name} after update {self.state.global_step:,}", value
                    )
                )
        named = {f"eval_{name}": value for name, value in metrics.items()}
        named["eval_seconds"] = time.perf_counter() - begun
        self.log(named)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        return named

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        if "attention_mask" in inputs:
            self.tokens += int(inputs["attention_mask"].sum())
        if "decoder_input_ids" in inputs:
            self.tokens += int(inputs["labels"].ne(-100).sum())
        # Several processes average gradients in each backward pass, which needs all of them.
        flows = flows_of(self._bare) if self._accumulates and self.args.world_size == 1 else []
        for flow in flows:
            flow.collect_cotangents()
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            sweep(flows)
        value = loss.item()
        if not math.isfinite(value):
            what = f"The loss of update {self.state.global_step + 1:,}"
            raise RunError(self._divergence_message(what, value))
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Check the norm, which the Trainer computes anyway, before the weights change."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[no-untyped-call]
        # Under fp16 the gradient scaler skips updates whose gradient is not finite.
        scaled = getattr(self.accelerator, "scaler", None) is not None
        value = float(norm)
        if not scaled and not math.isfinite(value):
            what = f"The norm of the gradient of update {self.state.global_step + 1:,}"
            raise RunError(self._divergence_message(what, value))
        return norm

    def _divergence_message(self, what: str, value: float) -> str:
        assert self.args.output_dir is not None
        existing = checkpoints(Path(self.args.output_dir))
        last = (
            f"{existing[-1].name} is the last good checkpoint and is kept"
            if existing
            else "there is no earlier checkpoint"
        )
        return (
            f"{what} must be finite, but is {value}: the training diverged. Lower `training.lr` "
            f"(now {self.args.learning_rate:g}), set `training.clip` or raise `training.warmup`, "
            f"and train into another --out; {last}."
        )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        if self._loss is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        assert num_items_in_batch is not None
        # Gradients are averaged over processes, so the loss of each is scaled up.
        processes = self.args.world_size if self.args.average_tokens_across_devices else 1
        return self._loss(model, inputs) / num_items_in_batch * processes

    # Checkpoints ----------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._temporary is None else str(self._temporary)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write to a temporary folder, sync, rename; then delete old checkpoints."""
        assert self.args.output_dir is not None
        folder = Path(self.args.output_dir)
        name = f"{PREFIX}{self.state.global_step}"
        self._check_weights()
        with writing(folder / name), self._written_to(folder / f".{name}"):
            super()._save_checkpoint(model, trial)
            written = folder / f".{name}" / name
            if self.args.should_save:
                save_solutions(self._bare, written / SOLUTIONS)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                record_hashes(written)
                publish(written, folder / name)
        if self.args.should_save:
            self._delete_old(folder)
        self.accelerator.wait_for_everyone()

    def save_unless_saved(self) -> None:
        """Save a checkpoint of the last update if there is none."""
        assert self.args.output_dir is not None
        if not any(
            step_of(checkpoint) == self.state.global_step
            for checkpoint in checkpoints(Path(self.args.output_dir))
        ):
            self._save_checkpoint(self._bare, None)

    def _check_weights(self) -> None:
        """Refuse to write weights that are not finite."""
        for name, parameter in self._bare.named_parameters():
            value = parameter.detach()
            # The sum takes a tenth of the time of the full check.
            if not bool(value.sum().isfinite()) and not bool(value.isfinite().all()):
                odd = float(value[~value.isfinite()].flatten()[0])
                raise RunError(
                    self._divergence_message(f"{name} after update {self.state.global_step:,}", odd)
                )

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        with reading(resume_from_checkpoint, RunError, GO_BACK):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with reading(f"{checkpoint}/rng_state.pth", RunError, GO_BACK):
            super()._load_rng_state(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with reading(f"{checkpoint}/scaler.pt", RunError, GO_BACK):
            super()._load_scaler(checkpoint)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # It would name the temporary folder; the step tells which checkpoint is best.
        self.state.best_model_checkpoint = None

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse missing weights, unless they are tied to others or recreated by the model."""
        model = self._bare
        state = model.state_dict(keep_vars=True)
        missing = set(load_result.missing_keys)
        loaded = {id(value) for name, value in state.items() if name not in missing}
        recreated = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
        lost = [
            name
            for name in load_result.missing_keys
            if id(state[name]) not in loaded and name not in recreated
        ]
        if lost:
            raise RunError(f"The checkpoint does not hold {lost[0]}; {GO_BACK}")

    @contextmanager
    def _written_to(self, place: Path) -> Iterator[None]:
        self._temporary = place
        try:
            yield
        finally:
            self._temporary = None
            if self.args.should_save:
                shutil.rmtree(place, ignore_errors=True)

    def _delete_old(self, folder: Path) -> None:
        best = self.state.best_global_step
        for old in checkpoints(folder)[: -self._keep]:
            if step_of(old) != best:
                shutil.rmtree(old)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with reading(f"{checkpoint}/optimizer.pt or scheduler.pt", RunError, GO_BACK):
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            with reading(f"{checkpoint}/{SOLUTIONS}", RunError, GO_BACK):
                load_solutions(self._bare, Path(checkpoint) / SOLUTIONS)
