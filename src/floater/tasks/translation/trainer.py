"""The Trainer of a translation run, and its look at the validation set."""

from __future__ import annotations

import torch
from accelerate.utils import gather_object
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from ...training.build_trainer import arguments, assemble
from ...training.loader import EpochLoader
from ...training.records import RunFolder
from ...training.trainer import SafeTrainer
from .batches import Collate, Examples, TokenBatches
from .config import TranslationConfig
from .decoding import Translator
from .model import MarianMTModel
from .preparing import Prepared
from .scoring import score


def make_trainer(
    config: TranslationConfig,
    model: MarianMTModel,
    prepared: Prepared,
    folder: RunFolder,
    console: Console,
) -> SafeTrainer:
    """The Trainer of a run."""
    training = config.training
    args = arguments(training, training.pace(), folder, seed=config.seed, metric="bleu")
    collate = Collate(prepared.vocabulary.pad, prepared.vocabulary.start)
    processes, process = args.world_size, args.process_index
    lengths = prepared.train.lengths()

    def loader() -> EpochLoader:
        batches = TokenBatches(
            lengths,
            training.batch_tokens,
            config.seed,
            processes=processes,
            process=process,
            together=processes * training.accumulate,
        )
        return EpochLoader(prepared.train, batches, collate, config.seed)

    def measure(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, MarianMTModel)
        return validate(config, model, prepared, processes, process)

    model.label_smoothing, model.jitter = training.label_smoothing, config.positions.jitter
    return assemble(
        training,
        args,
        model=model,
        data=prepared.train,
        loader=loader,
        measure=measure,
        folder=folder,
        console=console,
    )


@torch.no_grad()
def validate(
    config: TranslationConfig,
    model: MarianMTModel,
    prepared: Prepared,
    processes: int = 1,
    process: int = 0,
) -> dict[str, float]:
    """Loss a token (without smoothing) and BLEU on the validation set, shared out over
    processes.
    """
    words, valid = prepared.vocabulary, prepared.valid
    mine = range(process, len(valid), processes)
    source = [valid.source[i] for i in mine]
    encoded = Examples(words.encode(source), words.encode([valid.target[i] for i in mine]))
    collate = Collate(words.pad, words.start)
    total, count = 0.0, 0
    for batch in TokenBatches(encoded.lengths(), config.decoding.batch_tokens, 0).all():
        inputs = {
            name: tensor.to(model.device)
            for name, tensor in collate([encoded[i] for i in batch]).items()
        }
        labels = inputs.pop("labels")
        logits = model(**inputs).logits.float()
        total += float(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
        count += int(labels.ne(-100).sum())
    translator = Translator(model, words, config.decoding)
    rows = list(
        zip(mine, translator.translate(source, beam=config.decoding.valid_beam), strict=True)
    )
    sums = [(total, count)]
    if processes > 1:
        rows, sums = gather_object(rows), gather_object(sums)
    hypotheses = [text for _, text in sorted(rows)]
    bleu = score(hypotheses, valid.target, draws=0)["bleu"].score
    return {
        "loss": sum(part for part, _ in sums) / max(sum(number for _, number in sums), 1),
        "bleu": bleu,
    }
