"""transformers' Trainer, with checkpoints that are whole or not there and everything that steers training inside."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer

from ..attach import attachment
from ..encoders import Flow
from ..errors import RunError
from ..files import publish
from .groups import parameter_groups

PREFIX = "checkpoint-"
_KEPT = "floater_kept.safetensors"


class SafeTrainer(Trainer):
    """A Trainer that can be killed at any moment and goes on to the same bits.

    Args:
        loader: makes the training DataLoader; it must shard itself over processes.
        measure: called instead of the stock evaluation; returns metrics without prefix.
        keep: checkpoints to keep, besides the best.
        groups: keyword arguments of `parameter_groups`, all but `lr`.
        betas, eps: of Adam.
        loss: the loss of a batch, summed over its labels; the model's own unless given.
        fused: make an update in one pass over the weights; it rounds differently.
        **kwargs: the Trainer's own.
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
        loss: Callable[[nn.Module, dict[str, Any]], Tensor] | None = None,
        fused: bool = False,
        **kwargs: Any,
    ) -> None:
        self._make_loader, self._measure, self._keep = loader, measure, keep
        self._groups, self._betas, self._eps = groups, betas, eps
        self._loss, self._fused = loss, fused
        self._aside: Path | None = None
        self.tokens = 0
        super().__init__(**kwargs)
        if loss is not None:  # then labels are counted over all batches of an update, and the loss is divided by them here
            self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True

    @property
    def _bare(self) -> nn.Module:
        """The model, not wrapped for distributed training."""
        assert self.model is not None
        return self.model

    # Data, optimiser, evaluation --------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self._make_loader()

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            groups = parameter_groups(self._bare, lr=self.args.learning_rate, required=False, **self._groups)
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
        named = {f"eval_{name}": value for name, value in metrics.items()}
        named["eval_seconds"] = time.perf_counter() - begun
        self.log(named)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        return named

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None) -> Tensor:
        self.tokens += int(inputs["attention_mask"].sum())
        if "decoder_input_ids" in inputs:
            self.tokens += int(inputs["labels"].ne(-100).sum())
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        return loss

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
        processes = self.args.world_size if self.args.average_tokens_across_devices else 1  # gradients will be averaged
        return self._loss(model, inputs) / num_items_in_batch * processes

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._aside is None else str(self._aside)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write aside, sync, rename; then forget what is old."""
        assert self.args.output_dir is not None
        folder = Path(self.args.output_dir)
        name = f"{PREFIX}{self.state.global_step}"
        with self._written_aside(folder / f".{name}"):
            super()._save_checkpoint(model, trial)
            place = folder / f".{name}" / name
            if self.args.should_save:
                save_kept(self._bare, place / _KEPT)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                publish(place, folder / name)
        if self.args.should_save:
            self._forget(folder)
        self.accelerator.wait_for_everyone()

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.state.best_model_checkpoint = None  # a path that is hidden while it is written; the step tells which is best

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Weights that are tied to others, or made anew, are not missing; any other is."""
        model = self._bare
        state = model.state_dict(keep_vars=True)
        missing = set(load_result.missing_keys)
        loaded = {id(value) for name, value in state.items() if name not in missing}
        remade = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
        lost = [name for name in load_result.missing_keys if id(state[name]) not in loaded and name not in remade]
        if lost:
            raise RunError(f"The checkpoint does not hold {lost[0]}; remove it, and `--resume` goes on from the one before.")

    @contextmanager
    def _written_aside(self, place: Path) -> Iterator[None]:
        self._aside = place
        try:
            yield
        finally:
            self._aside = None
            if self.args.should_save:
                shutil.rmtree(place, ignore_errors=True)

    def _forget(self, folder: Path) -> None:
        found = checkpoints(folder)
        best = self.state.best_global_step
        for old in found[: -self._keep]:
            if step_of(old) != best:
                shutil.rmtree(old)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            load_kept(self._bare, Path(checkpoint) / _KEPT)


def step_of(checkpoint: Path) -> int:
    """The update after which a checkpoint was made."""
    return int(checkpoint.name.removeprefix(PREFIX))


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, the oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=step_of)


def verify(checkpoint: Path) -> None:
    """Raise if a checkpoint is damaged, before anything is done with it."""
    try:
        for path in checkpoint.glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                file.keys()
        for path in (*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")):
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    raise zipfile.BadZipFile(path.name)
        state_of(checkpoint)
    except (SafetensorError, zipfile.BadZipFile, OSError, ValueError) as error:
        raise RunError(
            f"{checkpoint} is damaged ({str(error).splitlines()[0]}); remove it, and `--resume` goes on from the one before."
        ) from None


def sweep(folder: Path) -> None:
    """Remove what a killed run left half-written."""
    for path in folder.glob(f".{PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def state_of(checkpoint: Path) -> dict[str, Any]:
    """The Trainer's own record in a checkpoint."""
    found: dict[str, Any] = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    return found


def save_kept(model: nn.Module, path: Path) -> None:
    """Write the solutions that encoders hold on to for several updates (`keep_for`), if any."""
    tensors = {}
    for name, flow in _flows(model):
        for key, tensor in flow.kept_state().items():
            tensors[f"{name}.{key}"] = tensor
    if tensors:
        save_file(tensors, path)


def load_kept(model: nn.Module, path: Path) -> None:
    """Take up the solutions that `save_kept` wrote."""
    tensors = load_file(path) if path.exists() else {}
    for name, flow in _flows(model):
        start = f"{name}."
        flow.load_kept_state({key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)})


def _flows(model: nn.Module) -> Iterator[tuple[str, Flow]]:
    made = attachment(model)
    if made is not None:
        for name, module in made.encoders.items():
            if isinstance(module, Flow):
                yield name, module
