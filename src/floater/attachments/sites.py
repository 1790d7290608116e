"""Which sites of a model take an encoding, and the modules they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from ..config import Config
from ..errors import ArgumentError, ConfigError
from .fused_heads import FusedHeads, QueryGroups
from .layouts import StackLayout

SiteKind = Literal["input", "blocks", "qkv", "phases", "table"]
SITE_KINDS = ("input", "blocks", "qkv", "phases", "table")
BUILT_IN_KINDS = ("phases", "table")
"""Sites at the built-in positions of a model, which all its blocks share."""


class Sites(Config):
    """A selection of a model's sites; by default all of one kind.

    `Sites("qkv", blocks=[1])` is the paper's input-block row in the q/k/v form.
    """

    kind: SiteKind
    """ "input" (the input of the first block), "blocks" (the input of every block), "qkv" (the
    biases of the projections), "phases" (the angles by which a rotary model rotates q and k) or
    "table" (the rows of a model's position table).
    """
    blocks: tuple[int, ...] | None = None
    """Numbers of blocks, from 1. Default: all."""
    projections: tuple[Literal["q", "k", "v"], ...] = ("q", "k", "v")
    """Which projections, for "qkv"."""
    stacks: tuple[Literal["encoder", "decoder", "cross"], ...] | None = None
    """Which stacks; "cross" stands for a decoder's attention to its encoder. Default: all."""
    targets: dict[str, str] | None = None
    """Path patterns of modules, for architectures without a layout (see `layout_of`)."""

    def __init__(self, /, kind: str, *unnamed: Any, **settings: Any) -> None:
        if kind not in SITE_KINDS:
            raise ArgumentError(
                f"`sites` must be one of {', '.join(map(repr, SITE_KINDS))}, but is {kind!r}."
            )
        super().__init__(*unnamed, kind=kind, **settings)
        for name in ("blocks", "projections", "stacks"):
            chosen = getattr(self, name) or ()
            repeated = [entry for entry in chosen if chosen.count(entry) > 1]
            if repeated:
                raise ConfigError(
                    f"`{name}` of Sites must not contain duplicates, but contains {repeated[0]!r} "
                    "more than once."
                )
        if kind in BUILT_IN_KINDS and (self.blocks, self.stacks, self.targets) != (None,) * 3:
            raise ConfigError(
                f"`blocks`, `stacks` and `targets` must be left out of Sites({kind!r}), which all"
                " blocks of a model share, but one is given."
            )
        if kind == "input" and self.blocks is not None:
            raise ConfigError(
                '`blocks` must be left out of Sites("input"), which is the input of the first'
                f' block, but is {self.blocks}; choose blocks with Sites("blocks", blocks=…) or'
                ' Sites("qkv", blocks=…).'
            )
        if kind != "qkv" and set(self.projections) != set("qkv"):
            raise ConfigError(
                f"`projections` must be left out of Sites({kind!r}), which adds to no projection,"
                f' but is {self.projections}; choose projections with Sites("qkv",'
                " projections=…)."
            )
        if kind != "qkv" and "cross" in (self.stacks or ()):
            raise ConfigError(
                f"`stacks` of Sites({kind!r}) must be 'encoder' or 'decoder', but contain 'cross',"
                ' a kind of attention; choose it with Sites("qkv", stacks=…).'
            )


@dataclass(frozen=True)
class InsertionPoint:
    """A module that takes encodings: a projection, a block whose input they are added to, or a
    self-attention that takes relative positions.

    Attributes:
        letters: which of "q", "k", "v" it takes, one site each; ("x",) for the input of a block and
            for a self-attention.
        tokens: whose positions it takes: those of the stack itself ("stack"), or those of the
            encoder that a decoder attends to ("source").
        projection: the projection, if it is one.
        first_site: number of its first site.
        fused: how one layer lays out q, k and v, if it computes all of them.
        cross: it belongs to a decoder's attention to its encoder.
        rotated: which of "q" and "k" a rotary encoder rotates, after encodings were added.
        grouped: how a projection of grouped queries takes the encodings of fewer heads.
        attention: the self-attention, if it is one.
    """

    letters: tuple[str, ...]
    tokens: Literal["stack", "source"]
    projection: nn.Module | None
    first_site: int
    fused: FusedHeads | None = None
    cross: bool = False
    rotated: tuple[str, ...] = ()
    grouped: QueryGroups | None = None
    attention: nn.Module | None = None

    @property
    def module(self) -> nn.Module | None:
        """The module whose slot is filled; None for the input of a block."""
        return self.projection if self.attention is None else self.attention


@dataclass(frozen=True)
class BlockSites:
    """The insertion points of one block; `number` counts from 1."""

    number: int
    module: nn.Module
    points: tuple[InsertionPoint, ...]


@dataclass(frozen=True)
class StackSites:
    """The insertion points of one stack.

    Attributes:
        name: of the stack.
        layout: where the architecture has its parts.
        module: the stack.
        blocks: its blocks with their insertion points.
        built_in: the site whose encodings are added to its built-in positions (the angles of
            rotary positions, the rows of a table), if any.
    """

    name: str
    layout: StackLayout
    module: nn.Module
    blocks: tuple[BlockSites, ...]
    built_in: int | None = None

    @property
    def built_in_kind(self) -> Literal["phases", "table"]:
        """What its built-in positions are, where they take encodings."""
        return "phases" if self.layout.positions_kind == "rotary" else "table"

    @property
    def positions_module(self) -> nn.Module:
        """The module of its built-in positions."""
        return self.module.get_submodule(self.layout.positions)


@dataclass(frozen=True)
class SitePlan:
    """All sites of a model.

    Attributes:
        stacks: the stacks with their insertion points.
        block_numbers: block of each site, from 1.
        stack_names: stack of each site.
        dims: size of the encoding of each site.
        at_input: the sites are the inputs of stacks, whichever block comes first.
    """

    stacks: tuple[StackSites, ...]
    block_numbers: tuple[int, ...]
    stack_names: tuple[str, ...]
    dims: tuple[int, ...]
    at_input: bool = False

    def site_names(self, kind: SiteKind) -> list[str]:
        """A name for each site: "encoder input", "encoder block 2", "decoder block 1 cross k"."""
        names = [""] * len(self.stack_names)
        for stack in self.stacks:
            if stack.built_in is not None:
                names[stack.built_in] = f"{stack.name} {stack.built_in_kind}"
            for block in stack.blocks:
                for point in block.points:
                    cross = " cross" if point.cross else ""
                    for site, letter in enumerate(point.letters, point.first_site):
                        suffix = "" if letter == "x" else f" {letter}"
                        names[site] = (
                            f"{stack.name} input"
                            if kind == "input"
                            else f"{stack.name} block {block.number}{cross}{suffix}"
                        )
        return names

    def points(self) -> Iterator[InsertionPoint]:
        """All insertion points, in order."""
        for stack in self.stacks:
            for block in stack.blocks:
                yield from block.points

    def projections(self) -> Iterator[nn.Module]:
        """The projections that take encodings or are rotated, each once."""
        yield from _each_once(point.projection for point in self.points())

    def attentions(self) -> Iterator[nn.Module]:
        """The self-attentions that take relative positions, each once."""
        yield from _each_once(point.attention for point in self.points())


def _each_once(modules: Iterable[nn.Module | None]) -> Iterator[nn.Module]:
    seen = set()
    for module in modules:
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            yield module
