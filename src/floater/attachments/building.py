"""Build the encoders of an attachment, after a check that they fit into memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..encoders import (
    EncoderConfig,
    PhaseFlowConfig,
    Rotary,
    RotaryConfig,
    TableFlow,
    TableFlowConfig,
)
from ..errors import ArgumentError, LayoutError, SavedError, first_line
from ..room import check_memory
from .fused_heads import count_heads
from .layouts import Layout
from .phases import phase_frequencies
from .projections import out_width
from .sites import BUILT_IN_KINDS, InsertionPoint, SitePlan
from .table_rows import extended_stacks, table_rows

Shapes = Mapping[str, Sequence[int]]
"""Shapes of weights, by name."""


class WeightsMismatch(SavedError):
    """Saved weights do not fit the attachment they were saved with."""


def _check_size(
    config: EncoderConfig, settings: tuple[int, int, list[int]], group: str, shapes: Shapes | None
) -> None:
    """Refuse an encoder that needs too much memory, or whose weights differ in shape from those
    saved, before it is built.
    """
    try:
        with torch.device("meta"):
            weights = {
                f"{group}.{name}": tensor
                for name, tensor in config.build(*settings).state_dict().items()
            }
    except RuntimeError as error:  # sizes overflow
        raise ArgumentError(f"{config!r} cannot be built: {first_line(error)}") from None
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    check_memory(size, f"The weights of {type(config).__name__}", "choose smaller settings", 0.5)
    if shapes is None:
        return
    for name, tensor in weights.items():
        saved = shapes.get(name)
        if saved is None or tuple(saved) != tuple(tensor.shape):
            problem = "is missing" if saved is None else f"has {tuple(saved)}"
            raise WeightsMismatch(
                f"The weights do not fit their description: {name} must have shape "
                f"{tuple(tensor.shape)}, but {problem}."
            )


def positions_of(base: nn.Module) -> int | None:
    """The largest number of positions that the config of a model names; None if it names none."""
    settings = getattr(base, "config", None)
    names = ("max_position_embeddings", "max_source_positions", "max_target_positions")
    limits = [getattr(settings, name, None) for name in names]
    return max((n for n in limits if isinstance(n, int) and n > 0), default=None)


def fit_phases(
    config: PhaseFlowConfig, positions: int | None, base: nn.Module, layout: Layout
) -> PhaseFlowConfig:
    """Return settings of phases with the length and the frequencies of the base model."""
    frequencies = phase_frequencies(base, layout)
    given = config.frequencies or tuple(frequencies)
    if len(given) != len(frequencies) or not all(map(_close, given, frequencies)):
        raise ArgumentError(
            "`frequencies` of a PhaseFlowConfig must be those of the model, but differ from them; "
            "leave them out."
        )
    fitted = config.fitted(positions, frequencies)
    if fitted.length is None:
        raise ArgumentError(
            "`length` of a PhaseFlowConfig must be the number of positions that the model was "
            f"trained on, but the config of {type(base).__name__} does not name it; set it."
        )
    return fitted


def _close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=1e-6)


BuiltIn = PhaseFlowConfig | TableFlowConfig
"""Settings of an encoder whose encodings are added to the built-in positions of a model."""


def fit_built_in(config: BuiltIn, base: nn.Module, layout: Layout, padding: int | None) -> BuiltIn:
    """Return settings of an encoder of built-in positions with what the base model determines.

    Args:
        config: the settings.
        base: the base model.
        layout: its layout.
        padding: id of the padding token.
    """
    if isinstance(config, PhaseFlowConfig):
        return fit_phases(config, positions_of(base), base, layout)
    rows = table_rows(base, layout, padding)
    if config.length is not None and config.length > len(rows):
        raise ArgumentError(
            f"`length` of a TableFlowConfig must be at most the {len(rows)} positions of the "
            f"model's table, but is {config.length}."
        )
    rows = rows[: config.length]
    _check_rows(rows, type(base).__name__)
    if config.exact and config.scaling in ("linear", "group"):
        _check_exact(config, base, layout)
    return config.fitted_to(rows)


def _check_exact(config: TableFlowConfig, base: nn.Module, layout: Layout) -> None:
    """Refuse a model whose short inputs cannot be told from long ones."""
    if layout.frames:
        raise ArgumentError(
            f"`exact` needs inputs of several lengths with the scaling {config.scaling!r}, but "
            f"{type(base).__name__} takes those of one length only; choose another scaling."
        )
    if "decoder" in extended_stacks(layout):
        raise ArgumentError(
            f"`exact` needs the length of an input before its first token with the scaling "
            f"{config.scaling!r}, but {type(base).__name__} generates one token after the other; "
            "choose another scaling."
        )


def _check_rows(rows: Tensor, name: str) -> None:
    """Refuse a table that cannot be continued."""
    if rows.device.type == "meta":
        raise ArgumentError(
            f"The position table of {name} must be in memory, but is on the device meta; load the "
            "model first."
        )
    broken = (~rows.detach().isfinite().all(-1)).nonzero()
    if len(broken):
        raise ArgumentError(
            f"The position table of {name} must hold finite numbers, but the row of position "
            f"{int(broken[0])} does not; load undamaged weights."
        )


def built_in_size(config: BuiltIn, base: nn.Module, layout: Layout) -> int:
    """Size of the encodings that built-in positions take."""
    if isinstance(config, PhaseFlowConfig):
        return len(config.frequencies or ())
    return table_rows(base, layout, None).shape[-1]


def groups_of(plan: SitePlan, per_stack: bool) -> dict[str, list[int]]:
    """The sites that each encoder serves: all of them, or those of one stack; and only those of one
    size, where sizes differ. Built-in positions have an encoder of their own.
    """
    built_in = {
        stack.built_in: stack.built_in_kind for stack in plan.stacks if stack.built_in is not None
    }
    sites = [site for site in range(len(plan.dims)) if site not in built_in]
    several = len({plan.dims[site] for site in sites}) > 1
    groups: dict[str, list[int]] = {}
    for site in sites:
        name = plan.stack_names[site] if per_stack else "all"
        groups.setdefault(f"{name}_{plan.dims[site]}" if several else name, []).append(site)
    for site, kind in built_in.items():
        groups.setdefault(kind, []).append(site)
    return dict(sorted(groups.items()))


def build_encoders(
    config: EncoderConfig,
    built_in: BuiltIn | None,
    plan: SitePlan,
    base: nn.Module,
    layout: Layout,
    per_stack: bool,
    shapes: Shapes | None,
) -> dict[str, nn.Module]:
    """Build one encoder per group of sites, with the device and dtype of the model.

    Args:
        config: settings of the encoders.
        built_in: settings of the encoder of built-in positions, if there is one.
        plan: the sites.
        base: the base model.
        layout: its layout.
        per_stack: one encoder per stack, instead of one for all.
        shapes: shapes of the weights that will be loaded, if any; they must fit.
    """
    if isinstance(config, RotaryConfig):
        return {}
    encoders = {}
    for group, members in groups_of(plan, per_stack).items():
        settings = (len(members), plan.dims[members[0]], [plan.block_numbers[i] for i in members])
        own = built_in if group in BUILT_IN_KINDS and built_in is not None else config
        _check_size(own, settings, group, shapes)
        encoders[group] = own.build(*settings)
        if isinstance(encoder := encoders[group], TableFlow):
            padding = layout.padding_of(getattr(base, "config", None))
            encoder.fit(table_rows(base, layout, padding)[: encoder.length])
    reference = _reference(base)
    for encoder in encoders.values():
        if reference is not None:
            dtype = reference.dtype if reference.is_floating_point() else None
            encoder.to(reference.device, dtype)
        for module in encoder.modules():
            module.__dict__["_is_hf_initialized"] = True  # `init_weights` must skip it
    return encoders


def build_rotary(
    config: EncoderConfig, rotary: RotaryConfig | None, plan: SitePlan, base: nn.Module
) -> Rotary | None:
    """Build the encoder that rotates queries and keys, if there is one."""
    settings = config if isinstance(config, RotaryConfig) else rotary
    return None if settings is None else settings.build(1, _head_size(plan, base))


def _head_size(plan: SitePlan, base: nn.Module) -> int:
    """Size of the heads that are rotated; it must be the same in all stacks."""
    sizes = {
        stack.name: _rotated_size(point, base, stack.name)
        for stack in plan.stacks
        for block in stack.blocks
        for point in block.points
        if point.rotated
    }
    if not sizes:
        raise LayoutError(f"{type(base).__name__} has no self-attention to rotate.")
    if len(set(sizes.values())) > 1:
        described = " and ".join(f"{size} in the {stack}" for stack, size in sizes.items())
        raise LayoutError(
            f"A rotary encoder needs heads of one size in all stacks, but they have {described}."
        )
    return next(iter(sizes.values()))


def _rotated_size(point: InsertionPoint, base: nn.Module, stack: str) -> int:
    """Size of the heads of a projection that is rotated."""
    assert point.projection is not None
    if point.fused is not None:
        return point.fused.head_size
    heads = count_heads(base, stack)
    if heads is None:
        raise LayoutError(
            f"The config of {type(base).__name__} must have num_attention_heads for a rotary "
            "encoder, but lacks it."
        )
    width = out_width(point.projection, "to rotate")
    return width // heads[0 if "q" in point.rotated else 1]


def _reference(base: nn.Module) -> torch.Tensor | None:
    """A parameter whose device and dtype new weights take. Those that are offloaded (`device_map`)
    have no device of their own.
    """
    return next((weight for weight in base.parameters() if weight.device.type != "meta"), None)
