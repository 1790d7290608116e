"""Which encoder a run uses, and at which sites."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from ..attachments import Sites
from ..config import Config
from ..encoders import ENCODER_CONFIGS, EncoderConfig, RotaryConfig, encoder_kind


class Placement(Config):
    """Which encoder, at which sites; each task has its own defaults."""

    label_without_encoder: ClassVar[str]
    """How tables name the positions of a run without an encoder."""

    encoder: EncoderConfig | None = None
    """`kind` (flow, sinusoidal, learned, recurrent, rotary, none) and that kind's settings."""
    sites: Sites
    """input, blocks or qkv; or {kind: qkv, blocks: [1], …} for some of them."""
    own: Literal["keep", "replace"]
    """What an encoder does to the model's built-in positions: keep and add to them, or replace
    them.
    """

    @field_validator("encoder", mode="before")
    @classmethod
    def _kind(cls, value: Any) -> Any:
        if isinstance(value, dict):
            value = dict(value)
            kind = value.pop("kind", None)
            if not isinstance(kind, str) or kind not in ENCODER_CONFIGS:
                kinds = ", ".join(ENCODER_CONFIGS)
                raise ValueError(f"`kind` must be one of {kinds}, but is {kind!r}")
            return ENCODER_CONFIGS[kind](**value)
        return value

    @field_validator("sites", mode="before")
    @classmethod
    def _sites(cls, value: Any) -> Any:
        if isinstance(value, str):
            return Sites(value)
        if isinstance(value, dict):
            if "kind" not in value:
                raise ValueError("give a `kind` (input, blocks or qkv) as well")
            return Sites(**value)
        return value

    @model_validator(mode="after")
    def _rotary(self) -> Placement:
        if isinstance(self.encoder, RotaryConfig) and self.sites.kind != "qkv":
            raise ValueError("a rotary encoder rotates queries and keys: `sites` must be qkv")
        return self

    def described(self) -> str:
        """A short description for tables."""
        if self.encoder is None:
            return self.label_without_encoder
        part = (
            "" if self.sites.blocks is None else f" block {','.join(map(str, self.sites.blocks))}"
        )
        return f"{encoder_kind(self.encoder)} {self.sites.kind}{part}"

    def dump(self) -> dict[str, Any]:
        """The settings as in a config file."""
        settings = self.model_dump(mode="json")
        if self.encoder is not None:
            kind = encoder_kind(self.encoder)
            settings["encoder"] = {"kind": kind, **self.encoder.model_dump(mode="json")}
        return settings
