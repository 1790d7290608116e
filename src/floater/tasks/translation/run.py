"""A translation run from raw text to BLEU: prepare, train, average, evaluate."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from rich.console import Console
from rich.progress import Progress
from torch import nn
from torch.nn import functional as F
from transformers import EarlyStoppingCallback, TrainingArguments, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging

from ...attach import from_pretrained, save_pretrained
from ...encoders import LearnedConfig
from ...errors import ArgumentError, ConfigError, DataError, RunError
from ...files import new_folder, write_text
from ...recipes import read
from ...training import UpdateEvery
from ...training.average import average
from ...training.progress import Progressing
from ...training.recording import record_positions
from ...training.records import CONFIG, RunFolder
from ...training.trainer import SafeTrainer, checkpoints, state_of, step_of, sweep, verify
from . import corpus, vocabulary
from .batches import Collate, EpochLoader, Examples, TokenBatches
from .config import TrainingConfig, TranslationConfig, VocabularyConfig
from .corpus import Pairs
from .decoding import Translator
from .model import MarianMTModel, build, position, position_parameters, rescale, warm_start
from .scoring import bins, paired_bootstrap, paper_bleu, score
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Prepared:
    """Everything that is read and checked before training starts."""

    vocabulary: Vocabulary
    train: Examples
    valid: Pairs
    test: Pairs | None
    facts: dict[str, Any]


def prepare(config: TranslationConfig, folder: RunFolder) -> Prepared:
    """Read and check the data, learn or copy the vocabulary, encode and filter."""
    data = config.data
    train, valid, test = (corpus.load(data, part) for part in ("train", "valid", "test"))
    assert train is not None
    assert valid is not None
    if data.max_pairs is not None:
        train = Pairs(train.source[: data.max_pairs], train.target[: data.max_pairs], train.name)
    if folder.vocabulary.exists():
        words = vocabulary.load(folder.vocabulary)
    elif config.init_from is not None:
        words = vocabulary.load(RunFolder.existing(config.init_from).vocabulary)
    else:
        words = _learned_once([*train.source, *train.target], config.vocabulary)
    source, target = words.encode(train.source), words.encode(train.target)
    kept = corpus.usable(data, source, target)
    examples = Examples([source[i] for i in kept], [target[i] for i in kept])
    _check_lengths(config, int(examples.lengths().max()))
    facts = {
        "data": {
            name: part.fingerprint() for name, part in (("train", train), ("valid", valid), ("test", test)) if part is not None
        },
        "training_pairs": len(examples),
        "longest": int(examples.lengths().max()),
        "vocabulary": len(words),
    }
    return Prepared(words, examples, valid, test, facts)


def _check_lengths(config: TranslationConfig, longest: int) -> None:
    if longest > config.training.batch_tokens:
        raise DataError(
            f"`batch_tokens` is {config.training.batch_tokens}, but the longest training sentence has {longest} tokens; raise it, "
            "or lower `max_tokens` of `data`."
        )
    encoder = config.positions.encoder
    if isinstance(encoder, LearnedConfig) and encoder.beyond == "error" and longest > encoder.max_length:
        raise DataError(
            f"The learned encoder has {encoder.max_length} positions, but the longest training sentence has {longest} tokens; "
            "raise `max_length`, set `beyond: clamp`, or lower `max_tokens` of `data`."
        )


def _check_warm_start(config: TranslationConfig, words: Vocabulary) -> TranslationConfig:
    """Refuse sizes that differ from the run that is started from; its vocabulary becomes that of the config."""
    assert config.init_from is not None
    base, _ = settings(config.init_from)
    ours, theirs = config.model.size(), base.model.size()
    for key in ("layers", "dim", "feed_forward", "heads"):
        if ours[key] != theirs[key]:
            raise RunError(
                f"{config.init_from} was trained with model.{key} = {theirs[key]}, but the config says {ours[key]}; a warm start "
                "needs the same model."
            )
    if "vocabulary" in config.model_fields_set and config.vocabulary.size != len(words):
        raise RunError(
            f"{config.init_from} has a vocabulary of {len(words)} entries, but the config says {config.vocabulary.size}; a warm "
            f"start takes over the vocabulary: set vocabulary.size to {len(words)}, or leave it out."
        )
    return config.model_copy(update={"vocabulary": base.vocabulary})


def _learned_once(lines: list[str], config: VocabularyConfig) -> Vocabulary:
    """A vocabulary that one process learns and all share."""
    state = PartialState(cpu=_on_cpu())
    texts = [vocabulary.learn(lines, config).text() if state.is_main_process else ""]
    if state.num_processes > 1:
        broadcast_object_list(texts)
    return vocabulary.from_text(texts[0])


def _on_cpu() -> bool:
    return not torch.cuda.is_available() and not torch.backends.mps.is_available()


def make_model(config: TranslationConfig, words: Vocabulary) -> MarianMTModel:
    """The model a run starts from."""
    model = build(config.model, words)
    position(model, config.positions)
    if config.init_from is not None:
        warm_start(model, RunFolder.existing(config.init_from).model)
        if config.init_scale:
            rescale(model, config.init_scale)
    return model


def train(config: TranslationConfig, path: Path, *, resume: bool = False, console: Console | None = None) -> RunFolder:
    """Train, average the last checkpoints, evaluate on the test set; all of it in a run folder.

    Args:
        config: the settings.
        path: the run folder.
        resume: go on where an earlier start of the same run was stopped.
        console: where to tell what happens.
    """
    console = (console or Console(stderr=True)) if os.environ.get("RANK", "0") == "0" else Console(quiet=True)
    folder = RunFolder(path)
    _check_start(config, folder, resume, console)
    training = config.training
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.set_flush_denormal(True)
    logging.disable_progress_bar()  # bars of loading and saving would break ours
    console.print("reading and encoding the data …", highlight=False)
    prepared = prepare(config, folder)
    if config.init_from is not None:
        config = _check_warm_start(config, prepared.vocabulary)
    set_seed(config.seed)
    model = make_model(config, prepared.vocabulary)
    trainer = make_trainer(config, model, prepared, folder, console)
    if trainer.is_world_process_zero():
        _begin(config, folder, model, prepared, trainer, console)
    trainer.accelerator.wait_for_everyone()
    latest = checkpoints(folder.checkpoints)[-1:] if resume else []
    if latest:
        console.print(f"going on after update {step_of(latest[0]):,}", highlight=False)
        if trainer.is_world_process_zero():
            folder.rewind(step_of(latest[0]))
    set_seed(config.seed)
    if not (latest and _finished(latest[0], training)):
        begun = time.perf_counter()
        trainer.train(resume_from_checkpoint=str(latest[0]) if latest else None)
        if trainer.is_world_process_zero():
            earlier = folder.facts().get("training_seconds", 0.0) if latest else 0.0
            folder.note(training_seconds=round(earlier + time.perf_counter() - begun, 1), updates=trainer.state.global_step)
    if trainer.is_world_process_zero():
        finish(config, folder, console)
    trainer.accelerator.wait_for_everyone()
    return folder


def _check_start(config: TranslationConfig, folder: RunFolder, resume: bool, console: Console) -> None:
    """Refuse what cannot be started or resumed."""
    path, training = folder.path, config.training
    if training.precision == "fp16" and _on_cpu():
        raise ConfigError("`precision` of `training` is fp16, which needs a GPU, but there is none; use bf16 or float32.")
    if not (path / CONFIG).exists():
        if resume:
            console.print(f"there is nothing to resume in {path}: starting anew", highlight=False)
        return
    if not resume:
        raise RunError(f"{path} holds a run already; go on with --resume, or choose another --out.")
    _same(config, folder)
    for latest in checkpoints(folder.checkpoints)[-1:]:
        verify(latest)
        if step_of(latest) > training.updates:
            raise RunError(f"{path} was trained for {step_of(latest)} updates, but the config says {training.updates}.")


def _finished(checkpoint: Path, training: TrainingConfig) -> bool:
    """Whether all updates were made, or patience ran out."""
    if step_of(checkpoint) >= training.updates:
        return True
    patience = state_of(checkpoint).get("stateful_callbacks", {}).get("EarlyStoppingCallback", {})
    waited = patience.get("attributes", {}).get("early_stopping_patience_counter", 0)
    return training.patience is not None and waited >= training.patience


def _same(config: TranslationConfig, folder: RunFolder) -> None:
    """Refuse to resume a run with settings that change its course."""
    before = TranslationConfig(**read(folder.path / CONFIG)).dump()
    now = config.dump()
    free = {"log_every", "tensorboard", "keep", "updates"}  # the schedule does not depend on where it ends
    for part, value in now.items():
        if isinstance(value, dict):
            changed = [key for key in value if key not in free and value[key] != before[part].get(key)]
            if changed and part != "decoding":
                raise RunError(
                    f"{folder.path} was started with {part}.{changed[0]} = {before[part].get(changed[0])!r}, but the config now "
                    f"says {value[changed[0]]!r}; resume with the same settings, or choose another --out."
                )
        elif value != before.get(part):
            raise RunError(f"{folder.path} was started with {part} = {before.get(part)!r}, but the config now says {value!r}.")


def _begin(
    config: TranslationConfig,
    folder: RunFolder,
    model: MarianMTModel,
    prepared: Prepared,
    trainer: SafeTrainer,
    console: Console,
) -> None:
    sweep(folder.checkpoints)
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
        f"{len(prepared.train):,} pairs in {len(batches):,} batches an epoch ({100 * batches.padding():.1f} % padding); "
        f"{total:,} parameters, {facts['position_parameters']:,} of them for positions ({config.positions.described()})",
        highlight=False,
    )


def make_trainer(
    config: TranslationConfig, model: MarianMTModel, prepared: Prepared, folder: RunFolder, console: Console
) -> SafeTrainer:
    """The Trainer of a run."""
    training = config.training
    arguments = TrainingArguments(
        output_dir=str(folder.checkpoints),
        max_steps=training.updates,
        gradient_accumulation_steps=training.accumulate,
        learning_rate=training.lr,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=training.warmup,
        max_grad_norm=training.clip,
        bf16=training.precision == "bf16",
        fp16=training.precision == "fp16",
        eval_strategy="steps",
        eval_steps=training.evaluate_every,
        save_strategy="steps",
        save_steps=training.save_every,
        save_total_limit=None,
        logging_steps=training.log_every,
        report_to=[],
        metric_for_best_model="bleu",
        greater_is_better=True,
        restore_callback_states_from_checkpoint=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=config.seed,
        dataloader_pin_memory=False,
        use_cpu=_on_cpu(),
    )
    collate = Collate(prepared.vocabulary.pad, prepared.vocabulary.start)
    processes, process = arguments.world_size, arguments.process_index
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
        # a generator of its own: the global one belongs to the model
        return EpochLoader(
            prepared.train, batch_sampler=batches, collate_fn=collate, generator=torch.Generator().manual_seed(config.seed)
        )

    def measure(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, MarianMTModel)
        return validate(config, model, prepared, processes, process)

    model.label_smoothing = training.label_smoothing
    progress = Progressing(folder, console)
    trainer = SafeTrainer(
        loader=loader,
        measure=measure,
        keep=training.keep,
        groups={
            "weight_decay": training.weight_decay,
            "flow_lr_multiple": training.flow_lr_multiple,
            "flow_weight_decay": training.flow_weight_decay,
            "freeze_flow": training.freeze_flow,
        },
        betas=training.betas,
        model=model,
        args=arguments,
        train_dataset=prepared.train,
        eval_dataset=prepared.train,  # the stock Trainer insists on one; `measure` looks at the validation set
        callbacks=[progress],
    )
    progress.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if training.tensorboard and arguments.process_index == 0:
        _to_tensorboard(trainer, folder)
    if training.update_every > 1:
        trainer.add_callback(UpdateEvery(training.update_every))
    if training.patience is not None:
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=training.patience))
    return trainer


def _to_tensorboard(trainer: SafeTrainer, folder: RunFolder) -> None:
    """Write curves for TensorBoard too, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (optional)
    except ImportError:
        return
    trainer.add_callback(TensorBoardCallback(SummaryWriter(str(folder.path / "tensorboard"))))


@torch.no_grad()
def validate(
    config: TranslationConfig, model: MarianMTModel, prepared: Prepared, processes: int = 1, process: int = 0
) -> dict[str, float]:
    """Loss a token (without smoothing) and BLEU on the validation set, shared out over processes."""
    words, valid = prepared.vocabulary, prepared.valid
    mine = range(process, len(valid), processes)
    source = [valid.source[i] for i in mine]
    encoded = Examples(words.encode(source), words.encode([valid.target[i] for i in mine]))
    collate = Collate(words.pad, words.start)
    total, count = 0.0, 0
    for batch in TokenBatches(encoded.lengths(), config.decoding.batch_tokens, 0).all():
        inputs = {name: tensor.to(model.device) for name, tensor in collate([encoded[i] for i in batch]).items()}
        labels = inputs.pop("labels")
        logits = model(**inputs).logits.float()
        total += float(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
        count += int(labels.ne(-100).sum())
    translator = Translator(model, words, config.decoding)
    rows = list(zip(mine, translator.translate(source, beam=config.decoding.valid_beam), strict=True))
    sums = [(total, count)]
    if processes > 1:
        rows, sums = gather_object(rows), gather_object(sums)
    hypotheses = [text for _, text in sorted(rows)]
    bleu = score(hypotheses, valid.target, draws=0)["bleu"].score
    return {"loss": sum(part for part, _ in sums) / max(sum(number for _, number in sums), 1), "bleu": bleu}


def finish(config: TranslationConfig, folder: RunFolder, console: Console) -> None:
    """Average the last checkpoints into the run's model and evaluate it on the test set."""
    count = config.training.average or 1
    average_run(folder, checkpoints(folder.checkpoints)[-count:])
    console.print(f"the model is the mean of the last {len(folder.facts()['averaged'])} checkpoints", highlight=False)
    test = corpus.load(config.data, "test")
    if test is not None:
        scores = evaluate(folder, test, name="test", console=console)
        console.print(describe(scores), highlight=False)


def average_run(folder: RunFolder, chosen: Sequence[Path], out: Path | None = None) -> Path:
    """Write the mean of some checkpoints as a model; the run's own unless `out` says where."""
    place = out or folder.model
    if out is not None and out.exists() and not (out / "floater_config.json").is_file() and (out.is_file() or any(out.iterdir())):
        raise RunError(f"{out} exists and is not an averaged model; choose a new folder.")
    logging.disable_progress_bar()
    weights = average(chosen)
    model = from_pretrained(MarianMTModel, chosen[-1])
    missing = model.load_state_dict(weights, strict=False).missing_keys
    odd = [name for name in missing if "embed_" not in name and name != "lm_head.weight" and not name.endswith("logits_bias")]
    if odd:
        raise RunError(f"{chosen[-1]} does not hold {odd[0]}.")
    model.tie_weights()
    with new_folder(place) as aside:
        save_pretrained(model, aside)
    if out is None:
        folder.note(averaged=[path.name for path in chosen])
        record_positions(folder)
    return place


def settings(path: Path) -> tuple[TranslationConfig, RunFolder]:
    """The config of a run, and its folder."""
    folder = RunFolder.existing(path)
    return TranslationConfig(**read(path / CONFIG)), folder


def load(path: Path, model: Path | None = None) -> tuple[TranslationConfig, Translator]:
    """A trained run, ready to translate; with the weights of `model` (see `average_run`) instead of its own if given."""
    config, folder = settings(path)
    if model is not None and not model.is_dir():
        raise RunError(f"{model} must be the folder of a model, but there is none.")
    if model is None and not folder.model.is_dir():
        raise RunError(f"{path} holds no model yet; finish it with `floater train … --resume`, or `floater average {path}`.")
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # a position past 1,024 is none to warn of
    trained = from_pretrained(MarianMTModel, model or folder.model)
    trained.eval()
    return config, Translator(trained, vocabulary.load(folder.vocabulary), config.decoding)


def evaluate(
    folder: RunFolder,
    pairs: Pairs,
    *,
    name: str,
    edges: Sequence[int] = (),
    paper: bool = False,
    beam: int | None = None,
    model: Path | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Translate and score; predictions and scores stay in the run folder.

    Args:
        folder: the run.
        pairs: what to translate, with references.
        name: under which predictions and scores are kept.
        edges: edges of bins of source length, in tokens.
        paper: BLEU as the paper computes it, beside sacreBLEU's.
        beam: width of the beam; the config's unless given.
        model: a folder of other weights than the run's.
        console: where to show a bar.
    """
    if Path(name).name != name or name.startswith("."):
        raise ArgumentError(f"`name` must be a plain name, without folders, but is {name!r}.")
    if edges:
        bins([], edges)  # wrong ones are refused before any work
    config, translator = load(folder.path, model)
    begun = time.perf_counter()
    with Progress(console=console or Console(stderr=True), transient=True) as bar:
        task = bar.add_task("translating", total=len(pairs))
        found = translator.translate(pairs.source, beam=beam, done=lambda lines: bar.advance(task, lines))
    folder.predictions.mkdir(exist_ok=True)
    write_text(folder.predictions / f"{name}.txt", "".join(f"{line}\n" for line in found))
    write_text(folder.predictions / f"{name}.ref.txt", "".join(f"{line}\n" for line in pairs.target))
    scores: dict[str, Any] = {key: value.as_dict() for key, value in score(found, pairs.target).items()}
    if paper:
        scores["paper_bleu"] = paper_bleu(found, pairs.target).as_dict()
    scores |= {
        "pairs": len(pairs),
        "beam": beam or config.decoding.beam,
        "length_penalty": config.decoding.length_penalty,
        "seconds": round(time.perf_counter() - begun, 1),
        "data": pairs.fingerprint(),
    }
    if edges:
        lengths = [len(row) for row in translator.vocabulary.encode(pairs.source)]
        scores["bins"] = {label: _binned(numbers, found, pairs.target) for label, numbers in bins(lengths, edges).items()}
    folder.add_scores(name, scores)
    return scores


def _binned(numbers: Sequence[int], found: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    if not numbers:
        return {"pairs": 0}
    scored = score([found[i] for i in numbers], [references[i] for i in numbers])
    return {"pairs": len(numbers), **{key: value.as_dict() for key, value in scored.items()}}


def compare(base: RunFolder, other: RunFolder, name: str) -> dict[str, Any]:
    """Paired bootstrap of two runs on predictions that both made under one name."""
    texts = []
    for folder in (base, other):
        path = folder.predictions / f"{name}.txt"
        if not path.exists():
            raise RunError(f"{folder.path} has no predictions for {name!r}; run `floater evaluate {folder.path}` first.")
        texts.append(path.read_text(encoding="utf-8").splitlines())
    references = [(folder.predictions / f"{name}.ref.txt").read_text(encoding="utf-8").splitlines() for folder in (base, other)]
    if references[0] != references[1]:
        raise RunError(f"{base.path} and {other.path} were evaluated on different references under the name {name!r}.")
    return dict(vars(paired_bootstrap(texts[0], texts[1], references[0])))


def describe(scores: dict[str, Any]) -> str:
    """Scores in words."""
    lines = []
    for key, label in (("bleu", "BLEU"), ("chrf", "chrF"), ("paper_bleu", "paper's BLEU")):
        if key in scores:
            found = scores[key]
            more = f" ± {found['interval']:.2f}" if found["interval"] is not None else ""
            lines.append(f"{label} {found['score']:.2f}{more}  ({found['signature']})")
    for label, part in scores.get("bins", {}).items():
        value = f"BLEU {part['bleu']['score']:.2f}, chrF {part['chrf']['score']:.2f}" if part["pairs"] else "no sentence"
        lines.append(f"  {label} tokens: {part['pairs']} sentences, {value}")
    return "\n".join(lines)
