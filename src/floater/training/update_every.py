"""Update the law of motion less often than the rest (§4.4 of the paper)."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..attachments import attachment
from ..errors import ArgumentError, AttachmentError


class UpdateEvery(TrainerCallback):
    """Train the attachment in every k-th optimiser step only; in between it is frozen and costs no
    reverse sweep.

    The default everywhere is k = 1: with one solve and one sweep a step there is little to save.
    Which steps train follows from the Trainer's own step count, so a resumed run goes on in the
    same rhythm.
    """

    def __init__(self, steps: int) -> None:
        if not isinstance(steps, int) or steps < 1:
            raise ArgumentError(f"`steps` must be a positive whole number, but is {steps!r}.")
        self.steps = steps

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Freeze or thaw for the step that begins."""
        _parameters(kwargs["model"]).requires_grad_(state.global_step % self.steps == 0)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the attachment thawed."""
        _parameters(kwargs["model"]).requires_grad_(True)


def _parameters(model: nn.Module) -> nn.Module:
    made = attachment(model)
    if made is None:
        raise AttachmentError("The model has no attachment; call floater.attach first.")
    return made
