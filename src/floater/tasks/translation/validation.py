"""Loss and BLEU on the validation set while training."""

from __future__ import annotations

import torch
from accelerate.utils import gather_object
from torch.nn import functional as F

from ...training.world import World
from .batches import Collate, Examples, TokenBatches
from .config import TranslationConfig
from .decoding import Translator
from .model import MarianMTModel
from .preparing import TranslationData
from .scoring import score


@torch.no_grad()
def validate(
    config: TranslationConfig, model: MarianMTModel, data: TranslationData, world: World
) -> dict[str, float]:
    """Loss per token (without label smoothing), and BLEU unless no line is to be translated; each
    process computes its share.

    Args:
        config: the run's.
        model: in eval mode.
        data: the run's.
        world: the processes.
    """
    vocabulary, valid = data.vocabulary, data.valid
    rows = range(world.rank, len(valid), world.size)
    source = [valid.source[row] for row in rows]
    target = [valid.target[row] for row in rows]
    examples = Examples(vocabulary.encode(source), vocabulary.encode(target))
    collate = Collate(vocabulary.pad, vocabulary.start)
    total, count = 0.0, 0
    for batch in TokenBatches(examples.lengths(), config.decoding.batch_tokens, 0).all():
        inputs = {
            name: tensor.to(model.device)
            for name, tensor in collate([examples[i] for i in batch]).items()
        }
        labels = inputs.pop("labels")
        logits = model(**inputs).logits.float()
        total += float(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
        count += int(labels.ne(-100).sum())
    translated = rows[: len(range(world.rank, _translated(config, len(valid)), world.size))]
    translations: list[str] = []
    if translated:
        translator = Translator(model, vocabulary, config.decoding)
        lines = source[: len(translated)]
        translations = translator.translate(lines, beam=config.decoding.valid_beam)
    numbered = list(zip(translated, translations, strict=True))
    sums = [(total, count)]
    if world.size > 1:
        numbered, sums = gather_object(numbered), gather_object(sums)
    tokens = max(sum(tokens for _, tokens in sums), 1)
    metrics = {"loss": sum(loss for loss, _ in sums) / tokens}
    if numbered:
        hypotheses = [text for _, text in sorted(numbered)]
        references = valid.target[: len(hypotheses)]
        metrics["bleu"] = score(hypotheses, references, draws=0)["bleu"].score
    return metrics


def _translated(config: TranslationConfig, lines: int) -> int:
    """How many lines of the validation set are translated."""
    wanted = config.decoding.valid_lines
    return lines if wanted is None else min(wanted, lines)
