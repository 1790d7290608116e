"""Translate lines with beam search, in batches of similar length; the order stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers import MarianMTModel

from ..padding import padded
from .config import DecodingConfig
from .vocabulary import Vocabulary


class Translator:
    """A model with its vocabulary and search settings.

    Args:
        model: a trained model.
        vocabulary: its vocabulary.
        config: beam, length penalty, limits.
    """

    def __init__(
        self, model: MarianMTModel, vocabulary: Vocabulary, config: DecodingConfig
    ) -> None:
        self.model, self.vocabulary, self.config = model, vocabulary, config

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        done: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Translate all lines; empty ones stay empty.

        Args:
            lines: sources.
            beam: beam width; default: the config's.
            done: called with the number of lines of each finished batch.
        """
        encoded = self.vocabulary.encode(lines)
        translations = [""] * len(lines)
        for batch in _batches(encoded, self.config.batch_tokens // (beam or self.config.beam)):
            for number, text in zip(
                batch, self._decode([encoded[number] for number in batch], beam), strict=True
            ):
                translations[number] = text
            if done is not None:
                done(len(batch))
        return translations

    def stream(
        self, lines: Iterable[str], *, window: int = 1000, done: Callable[[int], None] | None = None
    ) -> Iterator[str]:
        """Translate a stream of lines, `window` at a time."""
        held: list[str] = []
        for line in lines:
            held.append(line)
            if len(held) == window:
                yield from self.translate(held, done=done)
                held = []
        if held:
            yield from self.translate(held, done=done)

    @torch.inference_mode()
    def _decode(self, rows: Sequence[list[int]], beam: int | None) -> list[str]:
        device = self.model.device
        width = beam or self.config.beam
        search = (
            {"num_beams": width, "length_penalty": self.config.length_penalty}
            if width > 1
            else {"num_beams": 1}
        )
        source = padded(rows, self.vocabulary.pad).to(device)
        training = self.model.training
        self.model.eval()
        try:
            generated: Any = self.model.generate(  # type: ignore[misc]
                input_ids=source,
                attention_mask=source.ne(self.vocabulary.pad).to(torch.int64),
                max_new_tokens=self._limit(source.shape[1]),
                do_sample=False,
                **search,
            )
        finally:
            self.model.train(training)
        # The limit is that of each sentence, so that a translation does not depend on its batch.
        return self.vocabulary.decode(
            tokens[: 1 + self._limit(len(row))]  # the first token is the start token
            for tokens, row in zip(generated.tolist(), rows, strict=True)
        )

    def _limit(self, length: int) -> int:
        return int(self.config.max_ratio * length) + 20


def _batches(rows: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Numbers of the rows that are not empty, longest first, so that memory runs out early if at
    all.
    """
    order = sorted(
        (number for number, row in enumerate(rows) if len(row) > 1),
        key=lambda number: -len(rows[number]),
    )
    batch: list[int] = []
    for number in order:
        if batch and (len(batch) + 1) * len(rows[batch[0]]) > budget:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
