"""Which places of a model take an encoding, and where they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from ..config import Config
from ..errors import ArgumentError, ConfigError, LayoutError
from .layouts import Layout, StackLayout, find
from .projections import out_width, underlying

Kind = Literal["input", "blocks", "qkv"]
KINDS = ("input", "blocks", "qkv")


class Sites(Config):
    """A part of a model's sites; by default all of one kind.

    `Sites("qkv", blocks=[1])` is the paper's input-block row in the q/k/v form.
    """

    kind: Kind
    """ "input" (what enters the first block), "blocks" (what enters every block) or "qkv" (biases
    of the projections).
    """
    blocks: tuple[int, ...] | None = None
    """Numbers of blocks, from 1; all unless given."""
    projections: tuple[Literal["q", "k", "v"], ...] = ("q", "k", "v")
    """Which projections, for "qkv"."""
    stacks: tuple[Literal["encoder", "decoder", "cross"], ...] | None = None
    """Which stacks; "cross" stands for a decoder's attention to its encoder. All unless given."""
    targets: dict[str, str] | None = None
    """Places by pattern, for architectures without a layout (see `layout_of`)."""

    def __init__(self, /, kind: str, *unnamed: Any, **settings: Any) -> None:
        if kind not in KINDS:
            raise ArgumentError(
                f"`sites` must be one of {', '.join(map(repr, KINDS))}, but is {kind!r}."
            )
        super().__init__(*unnamed, kind=kind, **settings)
        for name in ("blocks", "projections", "stacks"):
            chosen = getattr(self, name) or ()
            twice = [part for part in chosen if chosen.count(part) > 1]
            if twice:
                raise ConfigError(
                    f"`{name}` of Sites must name each part once, but has {twice[0]!r} more than "
                    "once."
                )
        if kind == "input" and self.blocks is not None:
            raise ConfigError(
                '`blocks` must be left out of Sites("input"), which is what enters the first'
                f' block, but is {self.blocks}; choose blocks with Sites("blocks", blocks=…) or'
                ' Sites("qkv", blocks=…).'
            )
        if kind != "qkv" and set(self.projections) != set("qkv"):
            raise ConfigError(
                f"`projections` must be left out of Sites({kind!r}), which adds to what enters a"
                f' block, but is {self.projections}; choose projections with Sites("qkv",'
                " projections=…)."
            )
        if kind != "qkv" and "cross" in (self.stacks or ()):
            raise ConfigError(
                f"`stacks` of Sites({kind!r}) must be 'encoder' or 'decoder', but contain 'cross',"
                ' a kind of attention; choose it with Sites("qkv", stacks=…).'
            )


@dataclass(frozen=True)
class Place:
    """One or more sites that one module serves.

    Attributes:
        parts: which of q, k, v (one letter each), or "x" for what enters a block.
        axis: "own" for times of the stack itself, "source" for those of the other stack.
        layer: the projection, None for what enters a block.
        first: number of its first site.
        fused: one layer makes q, k and v.
        cross: it belongs to a decoder's attention to its encoder.
    """

    parts: tuple[str, ...]
    axis: Literal["own", "source"]
    layer: nn.Module | None
    first: int
    fused: bool = False
    cross: bool = False


@dataclass(frozen=True)
class BlockPlaces:
    """All places of one block; `number` counts from 1."""

    number: int
    module: nn.Module
    places: tuple[Place, ...]


@dataclass(frozen=True)
class StackPlaces:
    """All places of one stack."""

    name: str
    layout: StackLayout
    module: nn.Module
    blocks: tuple[BlockPlaces, ...]


@dataclass(frozen=True)
class Plan:
    """Where everything goes: stacks with their places, the number of sites, their blocks and their
    size.
    """

    stacks: tuple[StackPlaces, ...]
    numbers: tuple[int, ...]
    owners: tuple[str, ...]
    """Name of the stack that each site belongs to."""
    dim: int

    def names(self, kind: Kind) -> list[str]:
        """What to call each site: "encoder input", "encoder block 2", "decoder block 1 cross k"."""
        found = [""] * len(self.owners)
        for stack in self.stacks:
            for block in stack.blocks:
                for place in block.places:
                    cross = " cross" if place.cross else ""
                    for number, part in enumerate(place.parts, place.first):
                        letter = "" if part == "x" else f" {part}"
                        found[number] = (
                            f"{stack.name} input"
                            if kind == "input"
                            else f"{stack.name} block {block.number}{cross}{letter}"
                        )
        return found


def make_plan(base: nn.Module, layout: Layout, sites: Sites, additive: bool) -> Plan:
    """Find the modules of all chosen sites, number the sites, and check that they fit together.

    Args:
        base: the base model, or the model itself where targets are given by pattern.
        layout: its layout.
        sites: the part that is wanted.
        additive: False for rotary encodings, which turn queries and keys of self-attention only.
    """
    builder = _Builder(sites, additive)
    stacks = []
    for name, stack in layout.stacks.items():
        module = _module(base, stack.path)
        if module is None or not find(module, stack.blocks):
            continue
        modules = find(module, stack.blocks)
        if layout.repeated:
            modules = _unroll(modules, base)
        builder.check_numbers(len(modules))
        blocks = tuple(builder.block(name, stack, i, block) for i, block in enumerate(modules, 1))
        stacks.append(StackPlaces(name, stack, module, blocks))
    if not stacks:
        raise LayoutError(
            f"{type(base).__name__} has none of the stacks {', '.join(layout.stacks)} of its "
            "layout."
        )
    if not builder.numbers:
        raise LayoutError(f"No site matches {sites!r} in {type(base).__name__}.")
    dim = builder.width if sites.kind == "qkv" else hidden_size(base)
    return Plan(tuple(stacks), tuple(builder.numbers), tuple(builder.owners), dim)


class _Builder:
    """Numbers sites in the order in which they are met."""

    def __init__(self, sites: Sites, additive: bool) -> None:
        self._sites, self._additive = sites, additive
        self.numbers: list[int] = []
        self.owners: list[str] = []
        self.width = 0

    def check_numbers(self, count: int) -> None:
        """Refuse blocks that a stack does not have."""
        wrong = [number for number in self._sites.blocks or () if not 1 <= number <= count]
        if wrong:
            raise LayoutError(f"`blocks` must lie between 1 and {count}, but contain {wrong[0]}.")

    def block(self, stack: str, layout: StackLayout, number: int, module: nn.Module) -> BlockPlaces:
        """The places of one block."""
        return BlockPlaces(number, module, tuple(self._places(stack, layout, number, module)))

    def _places(
        self, stack: str, layout: StackLayout, number: int, module: nn.Module
    ) -> Iterator[Place]:
        sites = self._sites
        if sites.blocks is not None and number not in sites.blocks:
            return
        chosen = sites.stacks or ("encoder", "decoder", "cross")
        if sites.kind != "qkv":
            if stack in chosen and (sites.kind == "blocks" or number == 1):
                yield Place(("x",), "own", None, self._count(stack, number, 1))
            return
        if stack in chosen:
            yield from self._projections(stack, layout.attention, number, module, cross=False)
        if "cross" in chosen and self._additive:
            yield from self._projections(stack, layout.cross, number, module, cross=True)

    def _projections(
        self, stack: str, paths: Mapping[str, str], number: int, module: nn.Module, cross: bool
    ) -> Iterator[Place]:
        wanted = [part for part in self._sites.projections if self._additive or part in ("q", "k")]
        for part in paths:
            layer = _module(module, paths[part])
            if layer is None:
                continue
            layer = underlying(layer)
            fused = part == "qkv"
            parts = tuple(wanted) if fused else tuple(letter for letter in wanted if letter == part)
            if parts:
                name = f"{paths[part]} of block {number}"
                self._check_width(out_width(layer, name) // (3 if fused else 1), name)
                axis: Literal["own", "source"] = "source" if cross and part in ("k", "v") else "own"
                yield Place(
                    parts, axis, layer, self._count(stack, number, len(parts)), fused, cross
                )

    def _count(self, stack: str, number: int, sites: int) -> int:
        first = len(self.numbers)
        self.numbers += [number] * sites
        self.owners += [stack] * sites
        return first

    def _check_width(self, width: int, name: str) -> None:
        if self.width and width != self.width:
            raise LayoutError(
                f"All projections must be equally wide to share one law of motion, but {name} gives"
                f" {width} where others give {self.width} (grouped or multi-query attention);"
                ' choose projections of one width with floater.Sites("qkv", projections=("q",)),'
                ' or sites="blocks".'
            )
        self.width = width


def _module(root: nn.Module, path: str) -> nn.Module | None:
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None


def _unroll(modules: list[nn.Module], base: nn.Module) -> list[nn.Module]:
    """ALBERT: the block modules in the order in which they are called, shared ones once for each
    call.
    """
    config: Any = base.config
    per_group = config.inner_group_num
    calls = []
    for layer in range(config.num_hidden_layers):
        group = int(layer / (config.num_hidden_layers / config.num_hidden_groups))
        calls += modules[group * per_group : (group + 1) * per_group]
    return calls


def hidden_size(base: nn.Module) -> int:
    """Width of what flows between blocks."""
    config: Any = getattr(base, "config", None)
    for name in ("hidden_size", "d_model", "n_embd", "dim"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise LayoutError(
        f"The config of {type(base).__name__} does not say how wide its blocks are (hidden_size)."
    )
