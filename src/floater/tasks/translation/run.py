"""A translation run from raw text to BLEU: prepare, train, average, evaluate."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from transformers import set_seed

from ...files import new_folder
from ...training.drive import drive, settle, speaker
from ...training.locking import in_use
from ...training.records import CONFIG, RunFolder
from ...training.start import check_start
from ...training.trainer import SafeTrainer, sweep, usable
from .batches import TokenBatches
from .config import TranslationConfig
from .evaluation import average_run, describe, evaluate, test_pairs
from .model import MarianMTModel, build, position, position_parameters, rescale, warm_start
from .preparing import Prepared, prepare, resolved, same_data, settings
from .trainer import make_trainer
from .vocabulary import Vocabulary


def make_model(config: TranslationConfig, words: Vocabulary) -> MarianMTModel:
    """The model a run starts from."""
    model = build(config.model, words)
    position(model, config.positions)
    if config.init_from is not None:
        warm_start(model, RunFolder.existing(config.init_from).model)
        if config.init_scale is not None:
            rescale(model, config.init_scale)
    return model


def train(
    config: TranslationConfig, path: Path, *, resume: bool = False, console: Console | None = None
) -> RunFolder:
    """Train, average the last checkpoints, evaluate on the test set; all of it in a run folder.

    Args:
        config: the settings.
        path: the run folder.
        resume: go on where an earlier start of the same run was stopped.
        console: where to tell what happens.
    """
    with in_use(path, "train", create=True):
        return _train(config, RunFolder(path), resume=resume, console=speaker(console))


def _train(
    config: TranslationConfig, folder: RunFolder, *, resume: bool, console: Console
) -> RunFolder:
    config = resolved(config)
    before = settings(folder.path)[0].dump() if (folder.path / CONFIG).exists() else None
    check_start(folder, config.dump(), before, resume=resume, console=console)
    training = config.training
    settle(training)
    console.print("reading and encoding the data …", highlight=False)
    prepared = prepare(config, folder)
    same_data(folder, prepared)
    set_seed(config.seed)
    model = make_model(config, prepared.vocabulary)
    trainer = make_trainer(config, model, prepared, folder, console)
    if trainer.is_world_process_zero():
        _begin(config, folder, model, prepared, trainer, console)
    drive(
        trainer,
        folder,
        seed=config.seed,
        updates=training.updates,
        patience=training.patience,
        resume=resume,
        console=console,
    )
    if trainer.is_world_process_zero():
        finish(config, folder, console)
    trainer.accelerator.wait_for_everyone()
    return folder


def _begin(
    config: TranslationConfig,
    folder: RunFolder,
    model: MarianMTModel,
    prepared: Prepared,
    trainer: SafeTrainer,
    console: Console,
) -> None:
    sweep(folder)
    batches = trainer.get_train_dataloader().batch_sampler
    assert isinstance(batches, TokenBatches)
    total = sum(parameter.numel() for parameter in model.parameters())
    facts = {
        **prepared.facts,
        "seed": config.seed,
        "positions": config.positions.described(),
        "parameters": total,
        "position_parameters": position_parameters(model),
        "batches_an_epoch": len(batches),
        "padding": round(batches.padding(), 4),
        "processes": trainer.args.world_size,
    }
    folder.path.mkdir(parents=True, exist_ok=True)
    if not folder.vocabulary.exists():
        with new_folder(folder.vocabulary) as place:
            prepared.vocabulary.save(place)
    folder.begin(config.dump(), facts)
    console.print(
        f"{len(prepared.train):,} pairs in {len(batches):,} batches an epoch "
        f"({100 * batches.padding():.1f} % padding); {total:,} parameters, "
        f"{facts['position_parameters']:,} of them for positions ({config.positions.described()})",
        highlight=False,
    )


def finish(config: TranslationConfig, folder: RunFolder, console: Console) -> None:
    """Average the last checkpoints into the run's model and evaluate it on the test set."""
    count = config.training.average or 1
    average_run(folder, usable(folder.checkpoints)[-count:])
    console.print(
        f"the model is the mean of the last {len(folder.facts()['averaged'])} checkpoints",
        highlight=False,
    )
    test = test_pairs(config, folder)
    if test is not None:
        scores = evaluate(
            folder, test, name="test", edges=config.decoding.length_bins, console=console
        )
        console.print(describe(scores), highlight=False)
