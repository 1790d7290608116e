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
    """Loss per token (without label smoothing) and BLEU; each process computes its share.

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
    translator = Translator(model, vocabulary, config.decoding)
    translations = translator.translate(source, beam=config.decoding.valid_beam)
    numbered = list(zip(rows, translations, strict=True))
    sums = [(total, count)]
    if world.size > 1:
        numbered, sums = gather_object(numbered), gather_object(sums)
    hypotheses = [text for _, text in sorted(numbered)]
    return {
        "loss": sum(loss for loss, _ in sums) / max(sum(tokens for _, tokens in sums), 1),
        "bleu": score(hypotheses, valid.target, draws=0)["bleu"].score,
    }
