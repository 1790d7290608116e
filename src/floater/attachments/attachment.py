"""An encoder bound to the sites of one model. It can be disabled, detached, baked, saved."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..encoders import (
    Encoder,
    EncoderConfig,
    NoPosition,
    Rotary,
    RotaryConfig,
    encoder_kind,
)
from ..errors import ArgumentError, AttachmentError, LengthError
from ..times import nearest_positions
from . import hooks
from .adapters import active_module, check_adapters
from .building import Shapes, build_encoders, groups_of
from .given import Given, as_rows
from .installation import Installation
from .layouts import Layout, base_of, layout_of
from .sites import Sites, StackPlaces, make_plan
from .stack_encodings import Axis, Passage, Turns
from .token_positions import Places, Span

NAME = "floater"
"""Name under which the attachment is a submodule of its model."""
FORMAT = 1
"""Version of the description that is saved."""


class _Rebake:
    """Hook of an encoder and its parts: after other weights are loaded, stored encodings are made
    anew when they are used.
    """

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = (attachment,)  # no submodule of the encoder

    def __call__(self, module: nn.Module, incompatible: Any) -> None:
        self._attachment[0]._stale = bool(self._attachment[0]._baked)


def current(module: object) -> Attachment | None:
    """The attachment that a module named `floater` stands for: itself, or the copy that PEFT trains
    at present.
    """
    found = active_module(module)
    return found if isinstance(found, Attachment) else None


class Attachment(nn.Module):
    """An encoder at work in a model. Made by :func:`attach`."""

    def __init__(
        self,
        model: nn.Module,
        config: EncoderConfig,
        sites: Sites,
        positions: Literal["keep", "replace"],
        per_stack: bool,
        indices: Literal["model", "mask"],
        shapes: Shapes | None = None,
    ) -> None:
        super().__init__()
        self.config, self.sites, self.positions = config, sites, positions
        self.per_stack, self.indices = per_stack, indices
        self.layout: Layout = layout_of(model, sites.targets)
        base = model if sites.targets is not None else base_of(model)
        if (
            self.layout.carried
            and indices == "mask"
            and getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        ):
            raise ArgumentError(
                '`indices` must be "model" for the blocks of an encoder-decoder that are named by'
                ' pattern, but is "mask": which mask belongs to them is not known.'
            )
        additive = not isinstance(config, RotaryConfig)
        if not additive and sites.kind != "qkv":
            raise ArgumentError(
                'A rotary encoder turns queries and keys: sites must be "qkv", but is'
                f" {sites.kind!r}."
            )
        plan = make_plan(base, self.layout, sites, additive)
        self.padding: int | None = getattr(getattr(base, "config", None), "pad_token_id", None)
        self.encoders = nn.ModuleDict(build_encoders(config, plan, base, per_stack, shapes))
        self._groups = groups_of(plan, per_stack)
        self._plan, self.model_type = plan, type(base).__name__
        self._baked: tuple[str, ...] = ()
        self._stale = False
        for module in self.encoders.modules():
            module.register_load_state_dict_post_hook(_Rebake(self))
        self._installation = Installation(plan)
        self._installation.install(self, base)

    def __deepcopy__(self, memo: dict[int, Any]) -> Attachment:
        """A copy with the model is the copied model's; a copy by itself serves the same model, once
        it takes this one's place.
        """
        if not memo:
            memo[id(self._plan)], memo[id(self._installation)] = self._plan, self._installation
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__dict__, memo))  # type: ignore[no-untyped-call]
        return copied

    def check_adapters(self) -> None:
        """Refuse adapters of PEFT that do not go with an attachment."""
        for holder in self._installation.holders:
            check_adapters(holder, self._installation.layers())

    def live(self) -> Attachment:
        """The attachment whose weights count now: this one, or the trained copy that PEFT put in
        its place.
        """
        for holder in self._installation.holders:
            found = current(holder._modules.get(NAME))
            if found is not None and found._installation is self._installation:
                return found
        return self

    # What users see -------------------------------------------------------------------------------

    @property
    def encoder(self) -> nn.Module:
        """The encoder; with `per_stack`, use `encoders` instead."""
        if len(self.encoders) > 1:
            names = ", ".join(map(repr, self.encoders))
            raise AttachmentError(
                "This attachment has an encoder for each stack: use .encoders[…] with one of "
                f"{names}."
            )
        return next(iter(self.encoders.values()))

    @property
    def delta(self) -> float:
        """Δ, the time between two neighbouring tokens."""
        return self.config.delta

    @property
    def num_sites(self) -> int:
        """Number of sites, over all stacks."""
        return len(self._plan.owners)

    def site_names(self) -> list[str]:
        """What to call each site, in the order of `site_tables`."""
        return self._plan.names(self.sites.kind)

    @torch.no_grad()
    def site_tables(self, length: int) -> Tensor | None:
        """Encodings [length, sites, dim] of positions 0, 1, …, over all stacks; None for an encoder
        that adds nothing.
        """
        if isinstance(next(iter(self.encoders.values())), Rotary | NoPosition):
            return None
        return self._joined({name: table[:length] for name, table in self.tables(length).items()})

    @torch.no_grad()
    def own_table(self, length: int) -> Tensor | None:
        """The model's own encodings [length, dim], as long as its table goes; None where it has
        none, or lost it.
        """
        for stack in self._plan.stacks:
            own = self._installation.own.get(stack.name)
            if own is not None and not own.replace:
                return own.rows(length, self._own_offset(stack))
        return None

    def _own_offset(self, stack: StackPlaces) -> int:
        """Rows of the model's own table before that of position 0."""
        behind = (
            (1 if self.padding is None else self.padding) + 1
            if self.layout.rule == "padding"
            else 0
        )
        return stack.layout.own_offset + behind

    def num_parameters(self) -> int:
        """Parameters that the attachment adds to its model."""
        return sum(parameter.numel() for parameter in self.parameters())

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside, the model is what it was before `attach`."""
        before = self.enabled
        self._installation.switch(False)
        try:
            yield
        finally:
            self._installation.switch(before)

    @property
    def enabled(self) -> bool:
        """Whether encodings are added at present."""
        return self._installation.enabled

    @contextmanager
    def at(
        self,
        times: Tensor | Sequence[float] | None = None,
        *,
        source: Any = None,
        target: Any = None,
    ) -> Iterator[None]:
        """Inside, tokens stand at these real-valued times instead of at index·Δ.

        Args:
            times: [length] or [batch, length], for models of one stack.
            source: the same for the encoder of an encoder-decoder.
            target: the same for its decoder; without it, target tokens stand at index·Δ.

        Rows are repeated for beams. Tokens past the last given time (generated ones) continue by Δ.
        """
        two = len(self._plan.stacks) > 1
        if two and times is not None:
            raise ArgumentError(
                "An encoder-decoder takes `source=` and `target=`, but `times` was given."
            )
        if not two and (source is not None or target is not None):
            raise ArgumentError(
                "A model of one stack takes `times`, but `source=` or `target=` was given."
            )
        if times is None and source is None and target is None:
            raise ArgumentError("`at` needs times, but none were given.")
        before = self._installation.given
        own = target if two else times
        self._installation.given = Given(
            as_rows(own, "target" if two else "times"), as_rows(source, "source")
        )
        try:
            yield
        finally:
            self._installation.given = before

    def detach(self) -> None:
        """Take the attachment off; the model is what it was before."""
        self._installation.remove()
        for owner in self._installation.holders:
            found = current(owner._modules.get(NAME))
            if found is not None and found._installation is self._installation:
                delattr(owner, NAME)
            if getattr(getattr(owner, "config", None), NAME, None) is not None:
                delattr(owner.config, NAME)

    @torch.no_grad()
    def bake(self, length: int) -> None:
        """Store the encodings of positions 0 … length-1, so that nothing is solved any more."""
        if not isinstance(length, int) or length < 1:
            raise ArgumentError(f"`length` must be a positive whole number, but is {length!r}.")
        baked = {}
        for name, encoder in self.encoders.items():
            if isinstance(encoder, Encoder):
                baked[name] = encoder.table(length).detach().clone()
        if not baked:
            raise AttachmentError("A rotary encoder has nothing to bake.")
        self.set_baked(baked)

    def set_baked(self, tables: dict[str, Tensor]) -> None:
        """Use these stored encodings [length, sites, dim], by group of sites."""
        self.unbake()
        for name, table in tables.items():
            self.register_buffer(f"baked_{name}", table, persistent=False)
        self._baked = tuple(tables)

    def unbake(self) -> None:
        """Forget stored encodings and solve again."""
        for name in self._baked:
            delattr(self, f"baked_{name}")
        self._baked, self._stale = (), False

    @property
    def baked_length(self) -> int | None:
        """Positions that are stored, None if not baked."""
        tables = self.baked_tables()
        return min(len(table) for table in tables.values()) if tables else None

    def baked_tables(self) -> dict[str, Tensor]:
        """Stored encodings by group of sites."""
        if self._stale:
            self.bake(min(len(getattr(self, f"baked_{name}")) for name in self._baked))
        return {name: getattr(self, f"baked_{name}") for name in self._baked}

    def describe(self) -> dict[str, Any]:
        """Everything that `attach` needs to make this attachment again, ready for JSON."""
        return {
            "format": FORMAT,
            "encoder": {"kind": encoder_kind(self.config), **self.config.model_dump(mode="json")},
            "sites": self.sites.model_dump(mode="json"),
            "positions": self.positions,
            "per_stack": self.per_stack,
            "indices": self.indices,
        }

    def extra_repr(self) -> str:
        baked = f", baked to {self.baked_length}" if self._baked else ""
        return f"sites={self.sites.kind!r} ({self.num_sites}), positions={self.positions!r}{baked}"

    # What hooks ask -------------------------------------------------------------------------------

    def stack(self, name: str) -> StackPlaces:
        """The places of a stack."""
        return next(stack for stack in self._plan.stacks if stack.name == name)

    @property
    def num_stacks(self) -> int:
        """Number of stacks."""
        return len(self._plan.stacks)

    def stack_sites(self, name: str) -> bool:
        """Whether a stack has sites."""
        return any(block.places for block in self.stack(name).blocks)

    def check_own(self, stack: str, places: Places) -> None:
        """Raise if the model's own table, where it is kept, ends before these positions."""
        own = self._installation.own.get(stack)
        if own is not None and own.kind == "learned" and not own.replace:
            offset = self._own_offset(self.stack(stack))
            limit = own.limit(offset)
            unsure = places.bound is None or (limit is not None and places.bound > limit)
            if isinstance(places.index, Span) or (unsure and not torch.compiler.is_compiling()):
                own.check(places.reached(), offset)

    def passage(self, session: hooks.Session, own: Places, source: Places | None) -> Passage:
        """The encodings that one forward through a stack needs."""
        only = next(iter(self.encoders.values()))
        if isinstance(only, Rotary):
            return Passage(None, None, self._turns(only, own))
        if isinstance(only, NoPosition):
            return Passage(None, None)
        return Passage(
            self._axis(session, own), None if source is None else self._axis(session, source)
        )

    def _axis(self, session: hooks.Session, places: Places) -> Axis:
        tables, places = session.tables(places)
        return Axis(self._joined(tables), places)

    def _joined(self, tables: dict[str, Tensor]) -> Tensor:
        """One table for all sites from those of the groups."""
        if len(tables) == 1:
            return next(iter(tables.values()))
        sites = {
            site: tables[group][:, place]
            for group, members in self._groups.items()
            for place, site in enumerate(members)
        }
        return torch.stack([sites[site] for site in sorted(sites)], 1)

    def tables(self, length: int) -> dict[str, Tensor]:
        """Encodings [≥ length, sites, dim] of positions 0, 1, …, by group of sites."""
        if self._baked:
            if (
                self.training
                and torch.is_grad_enabled()
                and any(parameter.requires_grad for parameter in self.parameters())
            ):
                raise AttachmentError(
                    "A baked attachment cannot be trained: its encodings are stored; call unbake() "
                    "first, or freeze it with attachment.requires_grad_(False)."
                )
            baked = self.baked_tables()
            if not torch.compiler.is_compiling() and length > (self.baked_length or 0):
                raise LengthError(
                    f"The attachment is baked to {self.baked_length} positions, but {length} are "
                    f"needed; call bake({length}) or unbake()."
                )
            return baked
        return {name: encoder.table(length) for name, encoder in self._additive()}

    def tables_at(self, times: Tensor) -> dict[str, Tensor]:
        """Encodings [len(times), sites, dim] at real-valued times, by group of sites."""
        if self._baked:
            index, off_grid = nearest_positions(times, self.delta)
            if bool(off_grid.any()):
                raise AttachmentError(
                    "A baked attachment holds multiples of Δ only; call unbake() for times in "
                    "between."
                )
            tables = self.tables(int(index.max()) + 1)
            return {name: table[index.to(table.device)] for name, table in tables.items()}
        return {name: encoder(times) for name, encoder in self._additive()}

    def _additive(self) -> Iterator[tuple[str, Encoder]]:
        for name, encoder in self.encoders.items():
            assert isinstance(encoder, Encoder)
            yield name, encoder

    def _turns(self, rotary: Rotary, places: Places) -> Turns:
        index = places.index
        like = next(iter(self._plan.stacks)).module
        device = next(like.parameters()).device
        if isinstance(index, Span):
            index = torch.arange(index.first, index.first + index.length, device=device)
        elif index.shape[0] == 1:
            index = index[0]
        times = (
            index.to(torch.float64) * self.delta if places.times is None else places.times[index]
        )
        cosine, sine = rotary.angles(times)
        return Turns(cosine.unsqueeze(-2), sine.unsqueeze(-2))

    @property
    def given(self) -> Given | None:
        """Times set with `at`, if any."""
        return self._installation.given
