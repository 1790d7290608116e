"""Which sites of a model take an encoding, and the modules they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from ..config import Config
from ..errors import ArgumentError, ConfigError, LayoutError
from .layouts import Layout, StackLayout, find_modules
from .projections import out_width, underlying

SiteKind = Literal["input", "blocks", "qkv"]
SITE_KINDS = ("input", "blocks", "qkv")


class Sites(Config):
    """A selection of a model's sites; by default all of one kind.

    `Sites("qkv", blocks=[1])` is the paper's input-block row in the q/k/v form.
    """

    kind: SiteKind
    """ "input" (the input of the first block), "blocks" (the input of every block) or "qkv" (the
    biases of the projections).
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
        if kind == "input" and self.blocks is not None:
            raise ConfigError(
                '`blocks` must be left out of Sites("input"), which is the input of the first'
                f' block, but is {self.blocks}; choose blocks with Sites("blocks", blocks=…) or'
                ' Sites("qkv", blocks=…).'
            )
        if kind != "qkv" and set(self.projections) != set("qkv"):
            raise ConfigError(
                f"`projections` must be left out of Sites({kind!r}), which adds to the input of a"
                f' block, but is {self.projections}; choose projections with Sites("qkv",'
                " projections=…)."
            )
        if kind != "qkv" and "cross" in (self.stacks or ()):
            raise ConfigError(
                f"`stacks` of Sites({kind!r}) must be 'encoder' or 'decoder', but contain 'cross',"
                ' a kind of attention; choose it with Sites("qkv", stacks=…).'
            )


@dataclass(frozen=True)
class InsertionPoint:
    """A module that takes encodings: a projection, or a block whose input they are added to.

    Attributes:
        letters: which of "q", "k", "v" it takes, one site each; ("x",) for the input of a block.
        tokens: whose positions it takes: those of the stack itself ("stack"), or those of the
            encoder that a decoder attends to ("source").
        projection: the projection; None for the input of a block.
        first_site: number of its first site.
        fused: one layer computes q, k and v.
        cross: it belongs to a decoder's attention to its encoder.
    """

    letters: tuple[str, ...]
    tokens: Literal["stack", "source"]
    projection: nn.Module | None
    first_site: int
    fused: bool = False
    cross: bool = False


@dataclass(frozen=True)
class BlockSites:
    """The insertion points of one block; `number` counts from 1."""

    number: int
    module: nn.Module
    points: tuple[InsertionPoint, ...]


@dataclass(frozen=True)
class StackSites:
    """The insertion points of one stack."""

    name: str
    layout: StackLayout
    module: nn.Module
    blocks: tuple[BlockSites, ...]


@dataclass(frozen=True)
class SitePlan:
    """All sites of a model.

    Attributes:
        stacks: the stacks with their insertion points.
        block_numbers: block of each site, from 1.
        stack_names: stack of each site.
        dim: size of an encoding.
    """

    stacks: tuple[StackSites, ...]
    block_numbers: tuple[int, ...]
    stack_names: tuple[str, ...]
    dim: int

    def site_names(self, kind: SiteKind) -> list[str]:
        """A name for each site: "encoder input", "encoder block 2", "decoder block 1 cross k"."""
        names = [""] * len(self.stack_names)
        for stack in self.stacks:
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

    def projections(self) -> Iterator[nn.Module]:
        """The projections that take encodings, each once."""
        seen = set()
        for stack in self.stacks:
            for block in stack.blocks:
                for point in block.points:
                    if point.projection is not None and id(point.projection) not in seen:
                        seen.add(id(point.projection))
                        yield point.projection


def make_plan(base: nn.Module, layout: Layout, sites: Sites, additive: bool) -> SitePlan:
    """Find the modules of the selected sites, number the sites, and check that they fit together.

    Args:
        base: the base model, or the model itself where targets are given by pattern.
        layout: its layout.
        sites: the selection.
        additive: False for rotary encodings, which rotate queries and keys of self-attention only.
    """
    builder = _PlanBuilder(sites, additive)
    stacks = []
    for name, stack in layout.stacks.items():
        module = _submodule(base, stack.path)
        blocks = [] if module is None else find_modules(module, stack.blocks)
        if module is None or not blocks:
            continue
        if layout.shared_blocks:
            blocks = _in_call_order(blocks, base)
        builder.check_block_numbers(len(blocks))
        block_sites = tuple(
            builder.block(name, stack, number, block) for number, block in enumerate(blocks, 1)
        )
        stacks.append(StackSites(name, stack, module, block_sites))
    if not stacks:
        raise LayoutError(
            f"{type(base).__name__} has none of the stacks {', '.join(layout.stacks)} of its "
            "layout."
        )
    if not builder.block_numbers:
        raise LayoutError(f"No site matches {sites!r} in {type(base).__name__}.")
    dim = builder.dim if sites.kind == "qkv" else hidden_size(base)
    return SitePlan(tuple(stacks), tuple(builder.block_numbers), tuple(builder.stack_names), dim)


class _PlanBuilder:
    """Numbers sites in the order in which they are visited."""

    def __init__(self, sites: Sites, additive: bool) -> None:
        self._sites, self._additive = sites, additive
        self.block_numbers: list[int] = []
        self.stack_names: list[str] = []
        self.dim = 0

    def check_block_numbers(self, count: int) -> None:
        """Refuse blocks that a stack does not have."""
        wrong = [number for number in self._sites.blocks or () if not 1 <= number <= count]
        if wrong:
            raise LayoutError(f"`blocks` must lie between 1 and {count}, but contain {wrong[0]}.")

    def block(self, stack: str, layout: StackLayout, number: int, module: nn.Module) -> BlockSites:
        """The insertion points of one block."""
        return BlockSites(number, module, tuple(self._points(stack, layout, number, module)))

    def _points(
        self, stack: str, layout: StackLayout, number: int, module: nn.Module
    ) -> Iterator[InsertionPoint]:
        sites = self._sites
        if sites.blocks is not None and number not in sites.blocks:
            return
        chosen = sites.stacks or ("encoder", "decoder", "cross")
        if sites.kind != "qkv":
            if stack in chosen and (sites.kind == "blocks" or number == 1):
                yield InsertionPoint(("x",), "stack", None, self._add_sites(stack, number, 1))
            return
        if stack in chosen:
            yield from self._projections(stack, layout.attention, number, module, cross=False)
        if "cross" in chosen and self._additive:
            yield from self._projections(stack, layout.cross, number, module, cross=True)

    def _projections(
        self, stack: str, paths: Mapping[str, str], number: int, module: nn.Module, cross: bool
    ) -> Iterator[InsertionPoint]:
        chosen = [
            letter for letter in self._sites.projections if self._additive or letter in ("q", "k")
        ]
        for key, path in paths.items():
            layer = _submodule(module, path)
            if layer is None:
                continue
            layer = underlying(layer)
            fused = key == "qkv"
            letters = tuple(letter for letter in chosen if fused or letter == key)
            if letters:
                name = f"{path} of block {number}"
                self._check_dim(out_width(layer, name) // (3 if fused else 1), name)
                tokens: Literal["stack", "source"] = (
                    "source" if cross and key in ("k", "v") else "stack"
                )
                first_site = self._add_sites(stack, number, len(letters))
                yield InsertionPoint(letters, tokens, layer, first_site, fused, cross)

    def _add_sites(self, stack: str, number: int, count: int) -> int:
        first_site = len(self.block_numbers)
        self.block_numbers += [number] * count
        self.stack_names += [stack] * count
        return first_site

    def _check_dim(self, dim: int, name: str) -> None:
        if self.dim and dim != self.dim:
            raise LayoutError(
                "All projections must have outputs of the same size to share their dynamics, but "
                f"{name} has {dim} where others have {self.dim} (grouped or multi-query attention);"
                ' choose projections of one size with floater.Sites("qkv", projections=("q",)),'
                ' or sites="blocks".'
            )
        self.dim = dim


def _submodule(root: nn.Module, path: str) -> nn.Module | None:
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None


def _in_call_order(modules: list[nn.Module], base: nn.Module) -> list[nn.Module]:
    """ALBERT's block modules in the order of their calls; shared ones occur once per call."""
    config: Any = base.config
    per_group = config.inner_group_num
    calls = []
    for layer in range(config.num_hidden_layers):
        group = int(layer / (config.num_hidden_layers / config.num_hidden_groups))
        calls += modules[group * per_group : (group + 1) * per_group]
    return calls


def hidden_size(base: nn.Module) -> int:
    """Size of the hidden states between blocks."""
    config: Any = getattr(base, "config", None)
    for name in ("hidden_size", "d_model", "n_embd", "dim"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise LayoutError(f"The config of {type(base).__name__} must have hidden_size, but lacks it.")
