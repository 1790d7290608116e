"""What happens when a forward enters a model, a stack, a block.

Hooks are objects, not closures, so that a deep copy of a model gets hooks that know the copy's
attachment.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput

from ..errors import ArgumentError, AttachmentError
from .model_positions import Exchanged, exchanged
from .sites import Place, Plan
from .stack_encodings import Passage
from .token_positions import Arguments, Places, Span, masked, past_length, places, span

if TYPE_CHECKING:
    from .attachment import Attachment

SESSION, PASSAGE = "floater_session", "floater_passage"
SOURCE = "floater_positions"
"""Name under which an encoder's output tells a decoder at which positions its tokens were counted.
"""

Changed = tuple[tuple[Any, ...], dict[str, Any]] | None


def pre(module: nn.Module, hook: Any) -> torch.utils.hooks.RemovableHandle:
    """Call `hook(args, kwargs)` before the module's forward."""
    return module.register_forward_pre_hook(hook, with_kwargs=True)


def post(module: nn.Module, hook: Any) -> torch.utils.hooks.RemovableHandle:
    """Call `hook(args, kwargs, output)` after the module's forward, also where that fails (the
    output is then None).
    """
    return module.register_forward_hook(hook, with_kwargs=True, always_call=True)


class Carrier:
    """Takes an opening from a stack to its blocks, in the same thread, where the stack passes no
    unknown arguments on.
    """

    def __init__(self) -> None:
        self._threads = threading.local()
        self._traced: list[_Opening] = []  # a graph is traced by one thread

    def _stack(self) -> list[_Opening]:
        if torch.compiler.is_compiling():
            return self._traced
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        found: list[_Opening] = self._threads.stack
        return found

    def push(self, opening: _Opening) -> None:
        """A forward through the stack begins."""
        self._stack().append(opening)

    def pop(self) -> _Opening | None:
        """It ends."""
        stack = self._stack()
        return stack.pop() if stack else None

    def top(self) -> _Opening | None:
        """That of the forward which is under way."""
        stack = self._stack()
        return stack[-1] if stack else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Carrier, ()


class _Carried(Exchanged):
    """A block that looks up its opening before anything, checkpointing included, gets to see its
    arguments.
    """

    carrier: Carrier

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        opening = self.carrier.top()
        if opening is not None:
            kwargs[PASSAGE] = opening
        return super().__call__(*args, **kwargs)  # type: ignore[misc]


@dataclass
class CountedOutput(BaseModelOutput):
    """An encoder's output that also says at which positions its tokens stand; goes through beams
    with the rest.
    """

    floater_positions: Tensor | None = None


_DENSE, _WASTE = 4096, 64
"""Tables hold all positions up to the last, unless that is more than so many, and so many times the
tokens looked up.
"""


class Session:
    """The encodings of one forward through a whole model: made once, for the longest of its
    stacks.
    """

    def __init__(self, attachment: Attachment, length: int = 0) -> None:
        self._attachment, self._length = attachment, length
        self._tables: dict[str, Tensor] | None = None
        self.source: Places | None = None

    def tables(self, where: Places) -> tuple[dict[str, Tensor], Places]:
        """Encodings by group of sites, and where in them to look."""
        if where.times is not None:
            return self._attachment.tables_at(where.times), where
        if torch.compiler.is_compiling() and where.bound is None:
            return self._attachment.tables(0), where
        needed = where.needed()
        if where.bound is None and needed > max(self._length, _DENSE, _WASTE * where.count()):
            where = where.sparse(self._attachment.delta)
            assert where.times is not None
            return self._attachment.tables_at(where.times), where
        if self._tables is None or next(iter(self._tables.values())).shape[0] < needed:
            self._tables = self._attachment.tables(max(needed, self._length))
        return self._tables, where


class _Arriving:
    """A hook that looks at the arguments of a forward by name, and does nothing while the
    attachment is disabled.
    """

    def __init__(self, attachment: Attachment, module: nn.Module) -> None:
        self._attachment, self._arguments = attachment, Arguments(module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed:
        if not self._attachment.enabled:
            return None
        return self._changed(self._arguments.bind(args, kwargs), args, kwargs)

    def _changed(
        self, given: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Changed:
        raise NotImplementedError


class Root(_Arriving):
    """Entry of an encoder-decoder: one session for both stacks."""

    def _changed(
        self, given: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Changed:
        lengths = [0]
        for name in ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds"):
            tensor = given.get(name)
            if tensor is not None:
                lengths.append(tensor.shape[1])
        past = past_length(given)
        if isinstance(past, int):
            lengths[-1] += past
        session = Session(self._attachment.live(), max(lengths))
        outputs = given.get("encoder_outputs")
        if isinstance(outputs, ModelOutput):
            session.source = _recorded(outputs.get(SOURCE), outputs[0])
        return args, {**kwargs, SESSION: session}


class Entry:
    """Entry of a stack: number the tokens, look up their encodings, hand them on to the blocks."""

    def __init__(
        self, attachment: Attachment, stack: str, module: nn.Module, carrier: Carrier | None
    ) -> None:
        self._attachment, self._stack, self._arguments = attachment, stack, Arguments(module)
        self._carrier = carrier

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed:
        kwargs = dict(kwargs)
        session = kwargs.pop(SESSION, None)
        if not self._attachment.enabled:
            return args, kwargs
        self._attachment.check_adapters()
        attachment = self._attachment.live()
        session = session or Session(attachment)
        given = self._arguments.bind(args, kwargs)
        opening = _Opening(attachment, self._stack, session, given)
        if self._carrier is None:
            kwargs[PASSAGE] = opening
        else:
            self._carrier.push(opening)
        return args, kwargs


class Exit:
    """End of a stack: what its blocks were to add must have been added, and a decoder is told how
    its tokens were counted.
    """

    def __init__(self, attachment: Attachment, stack: str, carrier: Carrier | None) -> None:
        self._attachment, self._stack, self._carrier = attachment, stack, carrier

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if not self._attachment.enabled:
            return None
        opening = kwargs.get(PASSAGE) if self._carrier is None else self._carrier.pop()
        if torch.compiler.is_compiling():
            return None
        left = self._left()
        if output is None or opening is None:  # the forward failed
            return None
        if not opening.opened and self._attachment.stack_sites(self._stack) and not module.training:
            raise AttachmentError(
                f"A forward through {type(module).__name__} passed by its attachment: no block of "
                f"the {self._stack} was entered; name the blocks that it really calls with "
                "floater.Sites(…, targets={…})."
            )
        if left is not None:
            raise AttachmentError(
                f"A forward through {type(module).__name__} passed by its attachment: the"
                f' projection {left} was not called; attach with sites="blocks", or run the model'
                " with its own attention (no fused kernels that read the weights)."
            )
        return (
            opening.recorded(output)
            if self._stack == "encoder" and self._attachment.num_stacks > 1
            else None
        )

    def _left(self) -> str | None:
        """A projection that did not take what it was handed.

        Keys and values of another stack may be cached, and need not.
        """
        found = None
        for block in self._attachment.stack(self._stack).blocks:
            for place in block.places:
                if place.layer is not None:
                    slot: Any = place.layer.slot
                    if slot.left() and place.axis == "own":
                        found = found or f"{'/'.join(place.parts)} of block {block.number}"
        return found


class _Opening:
    """A passage that is made when the first block asks for it: only then is it certain how many
    tokens there are.
    """

    def __init__(
        self, attachment: Attachment, stack: str, session: Session, given: dict[str, Any]
    ) -> None:
        self._attachment, self._stack, self._session = attachment, stack, session
        rule = attachment.layout.rule
        self._own = places(
            rule,
            given,
            attachment.padding,
            attachment.indices == "mask",
            sure=not attachment.layout.carried,
        )
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
        """Positions of the other stack's tokens, as that stack counted them."""
        states = given.get("encoder_hidden_states")
        if states is None:
            return None
        if self._session.source is not None:
            return self._session.source
        recorded = _recorded(getattr(states, SOURCE, None), states)
        if recorded is not None:
            return recorded
        length, mask = states.shape[1], given.get("encoder_attention_mask")
        if self._attachment.indices == "mask":
            return masked(mask, length, 0, states.device)
        if (
            self._attachment.layout.rule == "padding"
        ):  # what the encoder saw is not known; where it was masked, it was padding
            if mask is not None and mask.dim() == 2:
                return masked(mask, length, 0, states.device)
            if states.shape[0] > 1 and not torch.compiler.is_compiling():
                warnings.warn(
                    "The decoder was given hidden states without a mask or a record of how their "
                    "tokens were counted: they are counted as if none were padding; pass the "
                    "encoder's whole output as `encoder_outputs`, or an attention mask.",
                    stacklevel=2,
                )
        return span(length, 0, states.device)

    @property
    def opened(self) -> bool:
        """Whether a block has asked for the passage."""
        return self._passage is not None

    def recorded(self, output: Any) -> Any:
        """An encoder's output with the positions of its tokens, for a decoder that is called
        later.
        """
        if self._own is None:
            return None
        states: Tensor = output[0]
        index = self._own.index
        if isinstance(index, Span):
            index = torch.arange(
                index.first, index.first + index.length, device=states.device
            ).unsqueeze(0)
        index = index.to(states.device).expand(states.shape[0], -1)
        setattr(states, SOURCE, index)
        return (
            CountedOutput(**output, floater_positions=index)
            if type(output) is BaseModelOutput
            else None
        )

    def passage(self, hidden: Tensor) -> Passage:
        """The passage, now that the first block is entered with `hidden` [B, L, dim]."""
        if self._passage is None:
            own = self._own or span(hidden.shape[1], self._past, hidden.device)
            _check_length(own, hidden)
            source = self._source
            if self._times is not None:
                two = (
                    source is not None or self._stack == "decoder" or self._times.source is not None
                )
                mine = (
                    self._times.source if two and self._stack == "encoder" else self._times.target
                )
                own = _at(mine, own, self._past, hidden, self._attachment.delta)
                if source is not None:
                    source = _at(self._times.source, source, 0, hidden, self._attachment.delta)
            self._passage = self._attachment.passage(self._session, own, source)
        return self._passage


class Block:
    """Entry of a block: add to what enters, fill the slots of its projections."""

    def __init__(self, attachment: Attachment, module: nn.Module) -> None:
        self._attachment, self._arguments = attachment, Arguments(module)
        self.by_call: dict[int, tuple[Place, ...]] = {}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed:
        kwargs = dict(kwargs)
        opening = kwargs.pop(PASSAGE, None)
        if opening is None:
            self._clear()
            if self._attachment.enabled and any(self.by_call.values()):
                raise AttachmentError(
                    f"{type(module).__name__} was entered without the encodings of its tokens; call"
                    " the whole model (blocks cannot be called by themselves, nor checkpointed "
                    "from outside), or do it inside attachment.disabled()."
                )
            return args, kwargs
        _check_checkpointing(module)
        name = None if args else self._arguments.first
        hidden: Tensor = args[0] if name is None else kwargs[name]
        passage = opening.passage(hidden)
        for place in self._places(passage):
            if place.layer is None:
                hidden = passage.add(place, hidden)
            else:
                passage.fill(place, hidden)
        if name is not None:
            return args, {**kwargs, name: hidden}
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


class Unlimited(_Arriving):
    """BERT's embeddings look `token_type_ids` up by position in a buffer of limited length: pass
    both explicitly.
    """

    def _changed(
        self, given: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Changed:
        source = given.get("input_ids")
        if source is None:
            source = given["inputs_embeds"][..., 0]
        zeros = torch.zeros(source.shape, dtype=torch.int64, device=source.device)
        if given.get("token_type_ids") is None:
            given["token_type_ids"] = zeros
        given["position_ids"] = zeros  # the table answers zero whatever is looked up
        return (), given


def _at(
    times: Tensor | None, where: Places, past: int | Tensor, hidden: Tensor, delta: float
) -> Places:
    """Positions from times a caller set: rows repeated for beams, continued by Δ past their end."""
    if times is None:
        return where
    length = where.index.length if isinstance(where.index, Span) else where.index.shape[1]
    first, batch = int(past), hidden.shape[0]
    rows, known = times.shape
    if batch % rows:
        raise ArgumentError(
            f"`at` was given times for {rows} sequences, but the batch holds {batch}."
        )
    if first == 0 and known > length:
        raise ArgumentError(
            f"`at` was given {known} times, but the sequences hold {length} tokens."
        )
    missing = first + length - known
    if missing > 0:
        steps = torch.arange(1, missing + 1, dtype=torch.float64) * delta
        times = torch.cat((times, times[:, -1:] + steps), 1)
    times = times[:, first : first + length]
    unique, index = torch.unique(times, return_inverse=True)
    if rows > 1 and batch > rows:
        index = index.repeat_interleave(batch // rows, 0)
    return Places(index, None, unique)


def carry(block: nn.Module, carrier: Carrier) -> None:
    """Let a block find its opening with a carrier."""
    block.__class__ = exchanged(_Carried, type(block))
    block.carrier = carrier  # type: ignore[assignment]


def uncarry(block: nn.Module) -> None:
    """Undo :func:`carry`."""
    if isinstance(block, _Carried):
        block.__class__ = type(block).__bases__[1]
        del block.carrier


def _recorded(index: Any, states: Tensor) -> Places | None:
    """Positions that :meth:`_Opening.record` left, None if there are none."""
    if not isinstance(index, Tensor):
        return None
    if index.shape != states.shape[:2]:
        raise ArgumentError(
            f"`encoder_outputs` must be an encoder's output as it was returned, but its {SOURCE} "
            f"have shape {tuple(index.shape)} where its states have {tuple(states.shape[:2])}; "
            "select rows in both, or make a new BaseModelOutput(last_hidden_state=…)."
        )
    same = None
    if index.device.type == "cpu" and not torch.compiler.is_compiling():
        plain = torch.arange(index.shape[1])
        same = Span(0, index.shape[1]) if bool((index == plain).all()) else None
    return Places(index, index.shape[1] if same else None, span=same)


def _check_length(own: Places, hidden: Tensor) -> None:
    """Refuse positions that were counted on other tokens than those that enter the first block."""
    length = own.index.length if isinstance(own.index, Span) else own.index.shape[1]
    if length != hidden.shape[1] and not torch.compiler.is_compiling():
        raise AttachmentError(
            f"Positions were counted for {length} tokens, but {hidden.shape[1]} enter the first "
            "block; pass `position_ids` [batch, "
            f'{hidden.shape[1]}], or attach with indices="model".'
        )


def _check_checkpointing(module: nn.Module) -> None:
    function = getattr(module, "_gradient_checkpointing_func", None)
    if function is None or not (
        module.training and getattr(module, "gradient_checkpointing", False)
    ):
        return
    if getattr(function, "keywords", {}).get("use_reentrant"):
        raise AttachmentError(
            "Re-entrant gradient checkpointing loses the gradient of encodings; enable it with "
            'gradient_checkpointing_kwargs={"use_reentrant": False} (the default).'
        )


def check_free(plan: Plan) -> None:
    """Refuse a second attachment, also where the first was made through the model's base or a model
    around it.
    """
    for stack in plan.stacks:
        if any(isinstance(hook, Entry) for hook in stack.module._forward_pre_hooks.values()):
            raise AttachmentError(
                f"The {stack.name} has an attachment already, made through its base or a model "
                "around it; call its detach() first."
            )
