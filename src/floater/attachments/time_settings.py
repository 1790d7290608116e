"""How an attachment treats times: random ones while training, and those past what was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..encoders import EncoderConfig, RelativeConfig
from ..errors import ArgumentError, AttachmentError, brief
from .beyond import Beyond, can_compress, check_beyond, describe_excess, is_past
from .jitter import JitterDraws, TimeJitter
from .trained_times import TrainedTimes


class TimeSettings(nn.Module):
    """The settings of an attachment that concern times, and the times it was trained on.

    Args:
        config: settings of the encoders.
        stacks: names of the model's stacks.
        rotates: whether there is a rotary encoder.

    Attributes:
        jitter: how times are moved while training, if they are.
        draws: the random times drawn so far; for internal use.
        beyond: what happens to inputs past the range of training.
        trained_range: the largest time in training, by stack.
        trained_times: the same as part of the model's state; for internal use.
        warned: a warning said that the model is used past the range; for internal use.
    """

    def __init__(self, config: EncoderConfig, stacks: Sequence[str], rotates: bool) -> None:
        super().__init__()
        self.config, self._rotates = config, rotates
        self._jitter: TimeJitter | None = None
        self.draws = JitterDraws()
        self._beyond: Beyond = "extrapolate"
        self.trained_times = TrainedTimes(stacks)
        self.warned = False

    @property
    def delta(self) -> float:
        """Δ, the time between two neighbouring tokens."""
        return self.config.delta

    @property
    def jitter(self) -> TimeJitter | None:
        """How times are moved while training; None if they are not."""
        return self._jitter

    @jitter.setter
    def jitter(self, jitter: TimeJitter | None) -> None:
        if jitter is not None and not isinstance(jitter, TimeJitter):
            raise ArgumentError(
                f"`jitter` must be a TimeJitter or None, but is {brief(jitter)}; write "
                "floater.TimeJitter(stretch=…)."
            )
        if jitter is not None and not can_compress(self.config, self._rotates):
            raise ArgumentError(
                "`jitter` needs an encoder that serves any time (flow, sinusoidal, fourier or "
                f"rotary), but the attachment has a {type(self.config).__name__}."
            )
        self._jitter = jitter
        self.settings_changed()

    @property
    def beyond(self) -> Beyond:
        """What happens to inputs past the range of training: "extrapolate" leaves their tokens at
        index·Δ, "compress" puts them closer together, "error" refuses them.
        """
        return self._beyond

    @beyond.setter
    def beyond(self, beyond: Beyond) -> None:
        checked = check_beyond(beyond, self.config, self._rotates)
        self._require_range(checked)
        self._beyond = checked
        self.settings_changed()

    @property
    def trained_range(self) -> dict[str, float]:
        """The largest time in training, by stack; empty before training. Training extends it. It
        can be set: to one number, or one for each stack; None forgets it.
        """
        return self.trained_times.known()

    @trained_range.setter
    def trained_range(self, value: float | Mapping[str, float] | None) -> None:
        self.trained_times.set(value)

    def known_range(self) -> dict[str, float]:
        """The same; raises if `beyond` needs it but it was not recorded. Relative positions have
        no times, and nothing new in longer inputs: empty, unless they shall be refused.
        """
        self._require_range(self._beyond)
        if isinstance(self.config, RelativeConfig) and self._beyond == "extrapolate":
            return {}
        return self.trained_times.known()

    def _require_range(self, beyond: Beyond) -> None:
        if beyond != "extrapolate" and self.trained_times.lost and not self.trained_times.known():
            raise AttachmentError(
                f'beyond="{beyond}" needs the range of training, but these weights were saved '
                "before it was recorded; set it first: attachment.trained_range = "
                f"{self.delta:g} * (tokens - 1), with the tokens of the longest training input."
            )

    def excess(self, length: int) -> str | None:
        """The beginning of a message that an input of so many tokens lies past the range of
        training; None if it does not, or the range is unknown.
        """
        time = (length - 1) * self.delta
        for stack, limit in self.trained_times.known().items():
            if is_past(time, limit):
                return describe_excess(self.label(stack), time, limit, self.delta)
        return None

    def label(self, stack: str) -> str:
        """How messages name the input of a stack."""
        if len(self.trained_times.stacks) == 1:
            return "An input"
        return "A source" if stack == "encoder" else "A target"

    def advice(self) -> str:
        """What can be done about inputs past the range; the end of a message."""
        advice = "past it nothing was learned. Train on longer inputs"
        if can_compress(self.config, self._rotates):
            if self._jitter is not None and self._jitter.stretch > 1:
                advice += ' or with a larger stretch, or choose beyond="compress"'
            else:
                advice += ', or with TimeJitter(stretch=…), which beyond="compress" builds on'
        return f"{advice}."

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Notice weights that were saved before the range of training was recorded."""
        weights = any(name.startswith(f"{prefix}encoders.") for name in state_dict)
        if weights and f"{prefix}trained_times.bits" not in state_dict:
            self.trained_times.lost = True
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def settings_changed(self) -> None:
        """Called when a setting was changed."""
