"""transformers' Trainer, with checkpoints that are whole or not there and everything that steers
training inside.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerState

from ..attachments import attachment
from ..encoders import Flow
from ..errors import RunError, brief
from ..files import check_hashes, publish, reading, record_hashes, writing
from .groups import freeze_flow, parameter_groups
from .records import RunFolder

PREFIX = "checkpoint-"
GO_BACK = "remove the folder of that checkpoint, and `--resume` goes on from the one before."
"""What to do about a checkpoint that cannot be used."""
_KEPT = "floater_kept.safetensors"
_NEEDED = ("config.json", "optimizer.pt", "scheduler.pt", "trainer_state.json")
"""Files without which a run would go on in another way, beside weights and random states."""


class SafeTrainer(Trainer):
    """A Trainer that can be killed at any moment and goes on to the same bits.

    Args:
        loader: makes the training DataLoader; it must shard itself over processes.
        measure: called instead of the stock evaluation; returns metrics without prefix.
        keep: checkpoints to keep, besides the best.
        groups: keyword arguments of `parameter_groups`, all but `lr`.
        freeze_flow: train the base only.
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
        freeze_flow: bool = False,
        loss: Callable[[nn.Module, dict[str, Any]], Tensor] | None = None,
        fused: bool = False,
        **kwargs: Any,
    ) -> None:
        self._make_loader, self._measure, self._keep = loader, measure, keep
        self._groups, self._betas, self._eps = groups, betas, eps
        self._loss, self._fused, self._freeze_flow = loss, fused, freeze_flow
        self._aside: Path | None = None
        self.tokens = 0
        super().__init__(**kwargs)
        if (
            loss is not None
            # then labels are counted over all batches of an update, and the loss is divided by them
            # here
        ):
            self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True

    @property
    def _bare(self) -> nn.Module:
        """The model, not wrapped for distributed training."""
        assert self.model is not None
        return self.model

    # Data, optimiser, evaluation ------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self._make_loader()

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            if self._freeze_flow:
                freeze_flow(self._bare)
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
                    self._diverged(
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
        self.tokens += int(inputs["attention_mask"].sum())
        if "decoder_input_ids" in inputs:
            self.tokens += int(inputs["labels"].ne(-100).sum())
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        found = loss.item()
        if not math.isfinite(found):
            raise RunError(
                self._diverged(f"The loss of update {self.state.global_step + 1:,}", found)
            )
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm that the Trainer computes for its log in any case, before the weights are
        changed.
        """
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[no-untyped-call]
        scaled = (
            getattr(self.accelerator, "scaler", None) is not None
        )  # fp16: such updates are left out, and scaled down
        found = float(norm)
        if not scaled and not math.isfinite(found):
            raise RunError(
                self._diverged(
                    f"The norm of the gradient of update {self.state.global_step + 1:,}", found
                )
            )
        return norm

    def _diverged(self, what: str, found: float) -> str:
        assert self.args.output_dir is not None
        kept = checkpoints(Path(self.args.output_dir))
        last = (
            f"{kept[-1].name} is the last good one and is kept"
            if kept
            else "there is no checkpoint before it"
        )
        return (
            f"{what} must be finite, but is {found}: the training diverged. Lower `training.lr` "
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
        processes = (
            self.args.world_size if self.args.average_tokens_across_devices else 1
        )  # gradients will be averaged
        return self._loss(model, inputs) / num_items_in_batch * processes

    # Checkpoints ----------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._aside is None else str(self._aside)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write aside, sync, rename; then forget what is old."""
        assert self.args.output_dir is not None
        folder = Path(self.args.output_dir)
        name = f"{PREFIX}{self.state.global_step}"
        self._check_weights()
        with writing(folder / name), self._written_aside(folder / f".{name}"):
            super()._save_checkpoint(model, trial)
            place = folder / f".{name}" / name
            if self.args.should_save:
                save_kept(self._bare, place / _KEPT)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                record_hashes(place)
                publish(place, folder / name)
        if self.args.should_save:
            self._forget(folder)
        self.accelerator.wait_for_everyone()

    def save_unless_saved(self) -> None:
        """Make sure that there is a checkpoint of the last update."""
        assert self.args.output_dir is not None
        if not any(
            step_of(one) == self.state.global_step
            for one in checkpoints(Path(self.args.output_dir))
        ):
            self._save_checkpoint(self._bare, None)

    def _check_weights(self) -> None:
        """Refuse to write weights that are not finite."""
        for name, parameter in self._bare.named_parameters():
            value = parameter.detach()
            if not bool(value.sum().isfinite()) and not bool(
                value.isfinite().all()
            ):  # a sum takes a tenth of the time
                odd = float(value[~value.isfinite()].flatten()[0])
                raise RunError(
                    self._diverged(f"{name} after update {self.state.global_step:,}", odd)
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
        self.state.best_model_checkpoint = (
            None  # a path that is hidden while it is written; the step tells which is best
        )

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Weights that are tied to others, or made anew, are not missing; any other is."""
        model = self._bare
        state = model.state_dict(keep_vars=True)
        missing = set(load_result.missing_keys)
        loaded = {id(value) for name, value in state.items() if name not in missing}
        remade = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
        lost = [
            name
            for name in load_result.missing_keys
            if id(state[name]) not in loaded and name not in remade
        ]
        if lost:
            raise RunError(f"The checkpoint does not hold {lost[0]}; {GO_BACK}")

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
        with reading(f"{checkpoint}/optimizer.pt or scheduler.pt", RunError, GO_BACK):
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            with reading(f"{checkpoint}/{_KEPT}", RunError, GO_BACK):
                load_kept(self._bare, Path(checkpoint) / _KEPT)


def step_of(checkpoint: Path) -> int:
    """The update after which a checkpoint was made."""
    return int(checkpoint.name.removeprefix(PREFIX))


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, the oldest first."""
    found = [
        path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdecimal()
    ]
    return sorted(found, key=step_of)


def usable(folder: Path) -> list[Path]:
    """Checkpoints, the oldest first; one there must be."""
    found = checkpoints(folder)
    if not found:
        raise RunError(
            f"{folder} must hold a checkpoint, but holds none; `floater train … --resume` trains "
            "anew."
        )
    return found


def verify(checkpoint: Path) -> None:
    """Raise if a checkpoint lacks something or is damaged, before anything is done with it."""
    missing = [name for name in _NEEDED if not (checkpoint / name).is_file()]
    if not any(checkpoint.glob("model*.safetensors")):
        missing.append("model.safetensors")
    if missing:
        raise RunError(f"{checkpoint} must hold {missing[0]}, but does not; {GO_BACK}")
    _verify_random_states(checkpoint)
    check_hashes(checkpoint, RunError, GO_BACK)
    for path in checkpoint.glob("*.safetensors"):
        with (
            reading(f"{checkpoint} is damaged: {path.name}", RunError, GO_BACK),
            safe_open(path, "pt") as file,
        ):
            file.keys()
    for path in (*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")):
        with (
            reading(f"{checkpoint} is damaged: {path.name}", RunError, GO_BACK),
            zipfile.ZipFile(path) as archive,
        ):
            if archive.testzip() is not None:
                raise zipfile.BadZipFile(path.name)
    state_of(checkpoint)


def _verify_random_states(checkpoint: Path) -> None:
    """Each process needs the random state of its own."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    wanted = (
        ["rng_state.pth"]
        if processes == 1
        else [f"rng_state_{number}.pth" for number in range(processes)]
    )
    missing = [name for name in wanted if not (checkpoint / name).is_file()]
    if not missing:
        return
    others = len(list(checkpoint.glob("rng_state*.pth")))
    if others and others != processes:
        raise RunError(
            f"{checkpoint} was made by {others} process{'es' if others > 1 else ''}, but "
            f"{processes} would go on with it; resume with {others}."
        )
    raise RunError(f"{checkpoint} must hold {missing[0]}, but does not; {GO_BACK}")


_HALF = re.compile(
    r"\.+(model|vocabulary|attachment|config\.yaml|run\.json|scores\.json|metrics\.jsonl|positions\.safetensors)(-\w{8}){1,2}"
)
"""Names under which the parts of a run are written before they are renamed."""


def sweep(folder: RunFolder) -> None:
    """Remove what a killed run left half-written."""
    half = [*folder.checkpoints.glob(f".{PREFIX}*"), *folder.predictions.glob(".*-????????")]
    half += [path for path in folder.path.glob(".*") if _HALF.fullmatch(path.name)]
    for path in half:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def state_of(checkpoint: Path) -> dict[str, Any]:
    """The Trainer's own record in a checkpoint."""
    path = checkpoint / "trainer_state.json"
    with reading(f"{checkpoint} is damaged: {path.name}", RunError, GO_BACK):
        found = json.loads(path.read_text(encoding="utf-8"))
        TrainerState.load_from_json(str(path))
    if found["global_step"] != step_of(checkpoint) or not isinstance(
        found.get("stateful_callbacks", {}), dict
    ):
        raise RunError(
            f"{checkpoint} is damaged: {path.name} must be that of update {step_of(checkpoint)}, "
            f"but is of {brief(found['global_step'])}; {GO_BACK}"
        )
    state: dict[str, Any] = found
    return state


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
        flow.load_kept_state(
            {
                key.removeprefix(start): tensor
                for key, tensor in tensors.items()
                if key.startswith(start)
            }
        )


def _flows(model: nn.Module) -> Iterator[tuple[str, Flow]]:
    made = attachment(model)
    if made is not None:
        for name, module in made.encoders.items():
            if isinstance(module, Flow):
                yield name, module
