"""Find the modules of the selected sites of a model, and number the sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from torch import nn

from ..errors import LayoutError
from .fused_heads import FusedHeads, QueryGroups, count_heads
from .layouts import Layout, StackLayout, find_modules
from .projections import out_width, underlying
from .sites import BlockSites, InsertionPoint, SitePlan, Sites, StackSites
from .table_rows import extended_stacks


def make_plan(
    base: nn.Module,
    layout: Layout,
    sites: Sites,
    additive: bool,
    rotary: bool = False,
    relative: bool = False,
    built_in: int | None = None,
) -> SitePlan:
    """Find the modules of the selected sites, number the sites, and check that they fit together.

    Args:
        base: the base model, or the model itself where targets are given by pattern.
        layout: its layout.
        sites: the selection.
        additive: whether encodings are added at the selected sites.
        rotary: whether queries and keys of self-attention are rotated: those that are selected, or
            all of them where encodings are added as well.
        relative: whether the selected self-attentions take relative positions.
        built_in: size of the encodings that built-in positions take; None if they take none.
    """
    builder = _PlanBuilder(base, sites, additive, rotary, relative)
    stacks = []
    grown = extended_stacks(layout)
    for name, stack in layout.stacks.items():
        module = submodule(base, stack.path)
        blocks = [] if module is None else find_modules(module, stack.blocks)
        if module is None or not blocks:
            continue
        if layout.shared_blocks:
            blocks = _in_call_order(blocks, base)
        builder.check_block_numbers(len(blocks))
        block_sites = tuple(
            builder.block(name, stack, number, block) for number, block in enumerate(blocks, 1)
        )
        takes = built_in is not None and (stack.positions_kind == "rotary" or name in grown)
        site = builder.built_in(name, built_in or 0) if takes else None
        stacks.append(StackSites(name, stack, module, block_sites, site))
    if not stacks:
        raise LayoutError(
            f"{type(base).__name__} has none of the stacks {', '.join(layout.stacks)} of its "
            "layout."
        )
    if built_in is None and not any(block.points for stack in stacks for block in stack.blocks):
        raise LayoutError(f"No site matches {sites!r} in {type(base).__name__}.")
    return SitePlan(
        tuple(stacks),
        tuple(builder.block_numbers),
        tuple(builder.stack_names),
        tuple(builder.dims),
        sites.kind == "input",
    )


class _PlanBuilder:
    """Numbers sites in the order in which they are visited."""

    def __init__(
        self, base: nn.Module, sites: Sites, additive: bool, rotary: bool, relative: bool
    ) -> None:
        self._base, self._sites = base, sites
        self._additive, self._rotary, self._relative = additive, rotary, relative
        self.block_numbers: list[int] = []
        self.stack_names: list[str] = []
        self.dims: list[int] = []

    def check_block_numbers(self, count: int) -> None:
        """Refuse blocks that a stack does not have."""
        wrong = [number for number in self._sites.blocks or () if not 1 <= number <= count]
        if wrong:
            raise LayoutError(f"`blocks` must lie between 1 and {count}, but contain {wrong[0]}.")

    def built_in(self, stack: str, size: int) -> int:
        """The site of the built-in positions of a stack, which all its blocks share."""
        return self._add_sites(stack, 1, [size])

    def block(self, stack: str, layout: StackLayout, number: int, module: nn.Module) -> BlockSites:
        """The insertion points of one block."""
        return BlockSites(number, module, tuple(self._points(stack, layout, number, module)))

    def _points(
        self, stack: str, layout: StackLayout, number: int, module: nn.Module
    ) -> Iterator[InsertionPoint]:
        sites = self._sites
        selected = sites.blocks is None or number in sites.blocks
        stacks = (sites.stacks or ("encoder", "decoder", "cross")) if selected else ()
        at_input = sites.kind == "blocks" or (sites.kind == "input" and number == 1)
        if self._relative and stack in stacks:
            yield self._attention(stack, layout, number, module)
        if self._additive and at_input and stack in stacks:
            first_site = self._add_sites(stack, number, [hidden_size(self._base)])
            yield InsertionPoint(("x",), "stack", None, first_site)
        added = sites.projections if self._additive and sites.kind == "qkv" else ()
        rotated: tuple[str, ...] = ()
        if self._rotary and self._additive:
            rotated = ("q", "k")
        elif self._rotary and stack in stacks:
            rotated = tuple(letter for letter in sites.projections if letter != "v")
        yield from self._projections(
            stack, layout, number, module, added if stack in stacks else (), rotated
        )
        if "cross" in stacks and added:
            yield from self._projections(stack, layout, number, module, added, (), cross=True)

    def _attention(
        self, stack: str, layout: StackLayout, number: int, block: nn.Module
    ) -> InsertionPoint:
        """The self-attention of a block: the module that has its projections."""
        key, path = next(iter(layout.attention.items()))
        attention = block.get_submodule(path.rpartition(".")[0])
        width = out_width(underlying(block.get_submodule(path)), f"{path} of block {number}")
        if key == "qkv":
            size = FusedHeads.of(self._base, width, layout.fused, path).head_size
        else:
            size = width // (count_heads(self._base, stack) or (1, 1))[0]
        first_site = self._add_sites(stack, number, [size])
        return InsertionPoint(("x",), "stack", None, first_site, attention=attention)

    def _projections(
        self,
        stack: str,
        layout: StackLayout,
        number: int,
        module: nn.Module,
        added: Sequence[str],
        rotated: Sequence[str],
        cross: bool = False,
    ) -> Iterator[InsertionPoint]:
        """Insertion points at the projections of one attention.

        Args:
            stack: name of the stack.
            layout: where its blocks have their projections.
            number: number of the block.
            module: the block.
            added: projections that encodings are added to.
            rotated: projections that are rotated.
            cross: whether it is the attention to another stack.
        """
        for key, path in (layout.cross if cross else layout.attention).items():
            layer = submodule(module, path)
            if layer is None:
                continue
            layer = underlying(layer)
            width = out_width(layer, f"{path} of block {number}")
            fused = None
            if key == "qkv":
                fused = FusedHeads.of(self._base, width, layout.fused, f"{path} of block {number}")
            letters, turned = (
                tuple(letter for letter in chosen if fused is not None or letter == key)
                for chosen in (added, rotated)
            )
            if letters or turned:
                grouped = _query_groups(self._base, width) if key == "q" else None
                size = width if fused is None else fused.encoding_size
                size = size if grouped is None else size // grouped.queries
                tokens: Literal["stack", "source"] = (
                    "source" if cross and key in ("k", "v") else "stack"
                )
                first_site = self._add_sites(stack, number, [size] * len(letters))
                yield InsertionPoint(
                    letters, tokens, layer, first_site, fused, cross, turned, grouped
                )

    def _add_sites(self, stack: str, number: int, widths: Sequence[int]) -> int:
        first_site = len(self.block_numbers)
        self.block_numbers += [number] * len(widths)
        self.stack_names += [stack] * len(widths)
        self.dims += widths
        return first_site


def _query_groups(base: nn.Module, width: int) -> QueryGroups | None:
    """The groups of a projection to queries of this width, None if every head of q has its own
    head of k.
    """
    queries, keys = count_heads(base) or (1, 1)
    return None if queries == keys else QueryGroups(queries // keys, width // queries)


def submodule(root: nn.Module, path: str) -> nn.Module | None:
    """The module at a path, None if there is none."""
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
