"""Stopping early."""

from __future__ import annotations

from typing import Any

from transformers import EarlyStoppingCallback

_COUNTER = "early_stopping_patience_counter"  # what the callback calls it in a checkpoint


class Patience(EarlyStoppingCallback):
    """Stop once the validation set has got no better for some looks. The run, not the Trainer, takes the best weights."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say nothing of weights that are not loaded."""

    @staticmethod
    def waited(state: dict[str, Any]) -> int:
        """For how many looks nothing got better, from the state of a checkpoint."""
        found: int = state.get("stateful_callbacks", {}).get(Patience.__name__, {}).get("attributes", {}).get(_COUNTER, 0)
        return found
