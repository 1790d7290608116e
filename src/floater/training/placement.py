"""Which encoder a run uses, and at which sites."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator
from torch import nn

from ..attachments import Attachment, Beyond, Sites, TimeJitter, attach, attachment
from ..config import Config
from ..encoders import (
    ENCODER_CONFIGS,
    EncoderConfig,
    FlowConfig,
    FourierConfig,
    PhaseFlowConfig,
    RelativeConfig,
    RotaryConfig,
    SinusoidalConfig,
    TableFlowConfig,
    encoder_kind,
)
from ..errors import ArgumentError

AT_ANY_TIME = (
    FlowConfig,
    SinusoidalConfig,
    FourierConfig,
    RotaryConfig,
    PhaseFlowConfig,
    TableFlowConfig,
)
"""Encoders that are defined, and learn, at any real-valued time."""


class Placement(Config):
    """Which encoder, at which sites; each task has its own defaults."""

    label_without_encoder: ClassVar[str]
    """How tables name the positions of a run without an encoder."""

    encoder: EncoderConfig | None = None
    """`kind` (flow, sinusoidal, fourier, learned, recurrent, rotary, relative, phases, table, none)
    and the settings of that kind.
    """
    rotary: RotaryConfig | None = None
    """A rotary encoder beside it, which rotates queries and keys: true, or its settings."""
    phases: PhaseFlowConfig | None = None
    """An encoder of a rotary model's phases beside it: its settings."""
    table: TableFlowConfig | None = None
    """An encoder of a model's position table beside it: its settings."""
    sites: Sites
    """input, blocks, qkv, phases or table; or {kind: qkv, blocks: [1], …} for some of them."""
    jitter: TimeJitter | None = None
    """Random times while training: stretch, offset, local, share. Default: off."""
    beyond: Beyond = "extrapolate"
    """What happens to inputs longer than any in training: extrapolate, compress or error."""
    own: Literal["keep", "replace"]
    """What an encoder does to the model's built-in positions: keep and add to them, or replace
    them.
    """

    @field_validator("encoder", mode="before")
    @classmethod
    def _kind(cls, value: Any) -> Any:
        if isinstance(value, dict):
            value = dict(value)
            default = cls.model_fields["encoder"].default
            kind = value.pop("kind", None if default is None else encoder_kind(default))
            if not isinstance(kind, str) or kind not in ENCODER_CONFIGS:
                kinds = ", ".join(ENCODER_CONFIGS)
                raise ValueError(f"`kind` must be one of {kinds}, but is {kind!r}")
            return ENCODER_CONFIGS[kind](**value)
        return value

    @field_validator("rotary", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return RotaryConfig() if value else None
        return value

    @field_validator("sites", mode="before")
    @classmethod
    def _sites(cls, value: Any) -> Any:
        if isinstance(value, str):
            return Sites(value)
        if isinstance(value, dict):
            if "kind" not in value:
                raise ValueError("give a `kind` (input, blocks, qkv, phases or table) as well")
            return Sites(**value)
        return value

    @model_validator(mode="after")
    def _rotary(self) -> Placement:
        if isinstance(self.encoder, RotaryConfig) and self.sites.kind != "qkv":
            raise ValueError("a rotary encoder rotates queries and keys: `sites` must be qkv")
        if isinstance(self.encoder, RelativeConfig) and self.sites.kind != "qkv":
            raise ValueError("relative positions are part of self-attention: `sites` must be qkv")
        for kind, settings in (("phases", PhaseFlowConfig), ("table", TableFlowConfig)):
            if self.encoder is not None and (
                isinstance(self.encoder, settings) != (self.sites.kind == kind)
            ):
                raise ValueError(f"encoder: {{kind: {kind}}} and sites: {kind} go together")
            if getattr(self, kind) is not None and (
                self.encoder is None or isinstance(self.encoder, PhaseFlowConfig | TableFlowConfig)
            ):
                raise ValueError(
                    f"`{kind}` stands beside an `encoder` that adds encodings, such as {{kind: "
                    f"flow}}; for {kind} alone, give encoder: {{kind: {kind}}} and sites: {kind}"
                )
        if self.rotary is not None and (
            self.encoder is None or isinstance(self.encoder, RotaryConfig | RelativeConfig)
        ):
            raise ValueError(
                "`rotary` stands beside an `encoder` that adds encodings, such as {kind: flow}; "
                "for rotary positions alone, give encoder: {kind: rotary} and sites: qkv"
            )
        if self.jitter is not None and not isinstance(self.encoder, AT_ANY_TIME):
            raise ValueError(
                "`jitter` needs an encoder that serves any time (flow, sinusoidal, fourier or "
                f"rotary), but the config has {self._named()}"
            )
        if self.beyond == "compress" and not isinstance(self.encoder, AT_ANY_TIME):
            raise ValueError(
                "`beyond: compress` needs an encoder that serves any time (flow, sinusoidal, "
                f"fourier or rotary), but the config has {self._named()}"
            )
        return self

    def _named(self) -> str:
        return "no encoder" if self.encoder is None else f"kind: {encoder_kind(self.encoder)}"

    def described(self) -> str:
        """A short description for tables."""
        if self.encoder is None:
            return self.label_without_encoder
        part = (
            "" if self.sites.blocks is None else f" block {','.join(map(str, self.sites.blocks))}"
        )
        rotary = "" if self.rotary is None else "rotary + "
        return f"{rotary}{encoder_kind(self.encoder)} {self.sites.kind}{part}"

    def attach(self, model: nn.Module, *, per_stack: bool = False) -> Attachment | None:
        """Attach the encoders to a model; None if there are none."""
        if self.encoder is None:
            return None
        return attach(
            model,
            self.encoder,
            rotary=self.rotary,
            phases=self.phases,
            table=self.table,
            sites=self.sites,
            positions=self.own,
            per_stack=per_stack,
            jitter=self.jitter,
            beyond=self.beyond,
        )

    def without_encoder(self) -> Self:
        """The same settings without an encoder and what belongs to it."""
        fields = type(self).model_fields
        belonging = {
            key: fields[key].default for key in ("rotary", "phases", "table", "jitter", "beyond")
        }
        return self.model_copy(update={"encoder": None, **belonging})

    def dump(self) -> dict[str, Any]:
        """The settings as in a config file."""
        settings = self.model_dump(mode="json")
        if self.encoder is not None:
            kind = encoder_kind(self.encoder)
            settings["encoder"] = {"kind": kind, **self.encoder.model_dump(mode="json")}
        return settings


def set_beyond(model: nn.Module, beyond: str) -> None:
    """Decide what happens to inputs past the range of training; `--beyond`.

    Args:
        model: a trained model.
        beyond: the setting; empty for that of the model.
    """
    if not beyond:
        return
    attached = attachment(model)
    if attached is None:
        raise ArgumentError(
            "`--beyond` needs a model with a position encoder, but this one has its own alone."
        )
    attached.beyond = beyond  # type: ignore[assignment]  # checked there
