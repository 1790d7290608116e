"""Stopping early."""

from __future__ import annotations

from typing import Any

from transformers import EarlyStoppingCallback

_COUNTER = "early_stopping_patience_counter"  # what the callback calls it in a checkpoint


class Patience(EarlyStoppingCallback):
    """Stop once the validation set has got no better for some looks.

    The run, not the Trainer, takes the best weights.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say nothing of weights that are not loaded."""

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Stop where there is nothing to wait for, with a checkpoint: a run goes on, and is
        finished, from checkpoints.
        """
        super().on_evaluate(args, state, control, metrics, **kwargs)  # type: ignore[no-untyped-call]
        if control.should_training_stop:
            control.should_save = True

    @staticmethod
    def waited(state: dict[str, Any]) -> int:
        """For how many looks nothing got better, from the state of a checkpoint."""
        kept = state.get("stateful_callbacks", {}).get(Patience.__name__, {})
        found = kept.get("attributes", {}).get(_COUNTER, 0) if isinstance(kept, dict) else 0
        return int(found)
