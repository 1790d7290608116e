"""What happens when a forward enters a model, a stack, a block.

Hooks are objects, not closures, so that a deep copy of a model gets hooks that know the copy's attachment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, AttachmentError
from .indices import Arguments, Places, Span, masked, past_length, places, span
from .passage import Passage
from .sites import Place, Plan

if TYPE_CHECKING:
    from .attachment import Attachment

SESSION, PASSAGE = "floater_session", "floater_passage"

Changed = tuple[tuple[Any, ...], dict[str, Any]] | None


def pre(module: nn.Module, hook: Any) -> torch.utils.hooks.RemovableHandle:
    """Call `hook(args, kwargs)` before the module's forward."""
    return module.register_forward_pre_hook(hook, with_kwargs=True)


class Session:
    """The encodings of one forward through a whole model: made once, for the longest of its stacks."""

    def __init__(self, attachment: Attachment, length: int = 0) -> None:
        self._attachment, self._length = attachment, length
        self._tables: dict[str, Tensor] | None = None
        self.source: Places | None = None

    def tables(self, where: Places) -> dict[str, Tensor]:
        """Encodings by group of sites, indexed by `where.index`."""
        if where.times is not None:
            return self._attachment.tables_at(where.times)
        if torch.compiler.is_compiling() and where.bound is None:
            return self._attachment.tables(0)
        needed = where.needed()
        if self._tables is None or next(iter(self._tables.values())).shape[0] < needed:
            self._tables = self._attachment.tables(max(needed, self._length))
        return self._tables


class Root:
    """Entry of an encoder-decoder: one session for both stacks."""

    def __init__(self, attachment: Attachment, module: nn.Module) -> None:
        self._attachment, self._arguments = attachment, Arguments(module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed:
        if not self._attachment.enabled:
            return None
        given = self._arguments.bind(args, kwargs)
        lengths = [0]
        for name in ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds"):
            tensor = given.get(name)
            if tensor is not None:
                lengths.append(tensor.shape[1])
        past = past_length(given)
        if isinstance(past, int):
            lengths[-1] += past
        return args, {**kwargs, SESSION: Session(self._attachment, max(lengths))}


class Entry:
    """Entry of a stack: number the tokens, look up their encodings, hand them on to the blocks."""

    def __init__(self, attachment: Attachment, stack: str, module: nn.Module) -> None:
        self._attachment, self._stack, self._arguments = attachment, stack, Arguments(module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed:
        kwargs = dict(kwargs)
        session = kwargs.pop(SESSION, None)
        if not self._attachment.enabled:
            return args, kwargs
        session = session or Session(self._attachment)
        given = self._arguments.bind(args, kwargs)
        kwargs[PASSAGE] = _Opening(self._attachment, self._stack, session, given)
        return args, kwargs


class _Opening:
    """A passage that is made when the first block asks for it: only then is it certain how many tokens there are."""

    def __init__(self, attachment: Attachment, stack: str, session: Session, given: dict[str, Any]) -> None:
        self._attachment, self._stack, self._session = attachment, stack, session
        rule = attachment.layout.rule
        self._own = places(rule, given, attachment.padding, attachment.indices == "mask")
        if self._own is not None:
            attachment.check_own(stack, self._own)
        self._past = past_length(given)
        if isinstance(self._past, Tensor):
            self._past = self._past.clone()  # a static cache counts on in place
        self._times = attachment.given
        self._source = self._source_places(given)
        if stack == "encoder":
            session.source = self._own
        self._passage: Passage | None = None

    def _source_places(self, given: dict[str, Any]) -> Places | None:
        states = given.get("encoder_hidden_states")
        if states is None:
            return None
        length = states.shape[1]
        if self._session.source is not None:
            return self._session.source
        mask = given.get("encoder_attention_mask")
        if self._attachment.layout.rule == "padding" and mask is not None and mask.dim() == 2:
            return masked(mask, length, 0, states.device)
        return span(length, 0, states.device)

    def passage(self, hidden: Tensor) -> Passage:
        """The passage, now that the first block is entered with `hidden` [B, L, dim]."""
        if self._passage is None:
            own = self._own or span(hidden.shape[1], 0, hidden.device)
            source = self._source
            if self._times is not None:
                two = source is not None or self._stack == "decoder" or self._times.source is not None
                mine = self._times.source if two and self._stack == "encoder" else self._times.target
                own = _at(mine, own, self._past, hidden, self._attachment.delta)
                if source is not None:
                    source = _at(self._times.source, source, 0, hidden, self._attachment.delta)
            self._passage = self._attachment.passage(self._session, own, source)
        return self._passage


class Block:
    """Entry of a block: add to what enters, fill the slots of its projections."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self.by_call: dict[int, tuple[Place, ...]] = {}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed:
        kwargs = dict(kwargs)
        opening = kwargs.pop(PASSAGE, None)
        if opening is None:
            self._clear()
            return args, kwargs
        _check_checkpointing(module)
        hidden: Tensor = args[0]
        passage = opening.passage(hidden)
        for place in self._places(passage):
            if place.layer is None:
                hidden = passage.add(place, hidden)
            else:
                passage.fill(place, hidden)
        return (hidden, *args[1:]), kwargs

    def _places(self, passage: Passage) -> tuple[Place, ...]:
        if not self._attachment.layout.repeated:
            return next(iter(self.by_call.values()))
        passage.calls += 1
        return self.by_call[passage.calls]

    def _clear(self) -> None:
        for group in self.by_call.values():
            for place in group:
                if place.layer is not None:
                    slot: Any = place.layer.slot
                    slot.take()


class Unlimited:
    """BERT's embeddings look `token_type_ids` up by position in a buffer of limited length: pass both explicitly."""

    def __init__(self, attachment: Attachment, module: nn.Module) -> None:
        self._attachment, self._arguments = attachment, Arguments(module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed:
        if not self._attachment.enabled:
            return None
        given = self._arguments.bind(args, kwargs)
        source = given.get("input_ids")
        if source is None:
            source = given["inputs_embeds"][..., 0]
        zeros = torch.zeros(source.shape, dtype=torch.int64, device=source.device)
        if given.get("token_type_ids") is None:
            given["token_type_ids"] = zeros
        given["position_ids"] = zeros  # the table answers zero whatever is looked up
        return (), given


def _at(times: Tensor | None, where: Places, past: int | Tensor, hidden: Tensor, delta: float) -> Places:
    """Positions from times a caller set: rows repeated for beams, continued by Δ past their end."""
    if times is None:
        return where
    length = where.index.length if isinstance(where.index, Span) else where.index.shape[1]
    first, batch = int(past), hidden.shape[0]
    rows, known = times.shape
    if batch % rows:
        raise ArgumentError(f"`at` was given times for {rows} sequences, but the batch holds {batch}.")
    if first == 0 and known > length:
        raise ArgumentError(f"`at` was given {known} times, but the sequences hold {length} tokens.")
    missing = first + length - known
    if missing > 0:
        steps = torch.arange(1, missing + 1, dtype=torch.float64) * delta
        times = torch.cat((times, times[:, -1:] + steps), 1)
    times = times[:, first : first + length]
    unique, index = torch.unique(times, return_inverse=True)
    if rows > 1 and batch > rows:
        index = index.repeat_interleave(batch // rows, 0)
    return Places(index, None, unique)


def _check_checkpointing(module: nn.Module) -> None:
    function = getattr(module, "_gradient_checkpointing_func", None)
    if function is None or not (module.training and getattr(module, "gradient_checkpointing", False)):
        return
    if getattr(function, "keywords", {}).get("use_reentrant"):
        raise AttachmentError(
            "Re-entrant gradient checkpointing loses the gradient of encodings; enable it with "
            'gradient_checkpointing_kwargs={"use_reentrant": False} (the default).'
        )


def check_free(plan: Plan) -> None:
    """Refuse a second attachment, also where the first was made through the model's base or a model around it."""
    for stack in plan.stacks:
        if any(isinstance(hook, Entry) for hook in stack.module._forward_pre_hooks.values()):
            raise AttachmentError(
                f"The {stack.name} has an attachment already, made through its base or a model around it; call its detach() first."
            )
