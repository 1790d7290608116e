"""Tokens per second of `floater train` compared with a Seq2SeqTrainer with group_by_length.

    python benchmarks/batching.py [--config configs/translation/multi30k-sinusoidal.yaml] [--rounds
    5] [--updates 20]

Both train the same new model on the same data, with the same token-smoothed loss and on average the
same number of tokens per update. Each round trains both for some updates, in random order, and
counts the tokens that are not padding. The output is the medians, their ratio, and the padding.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from transformers import (
    DataCollatorForSeq2Seq,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)

from floater import recipes
from floater.attachments import attachment
from floater.files import write_text
from floater.runs.folder import RunFolder
from floater.tasks.translation import preparing
from floater.tasks.translation.batches import TokenBatches
from floater.tasks.translation.config import TranslationConfig
from floater.tasks.translation.task import TranslationTask, make_model
from floater.training.build_trainer import build_trainer

console = Console(stderr=True)


class Counting(Seq2SeqTrainer):
    """The plain Trainer, which also counts tokens."""

    real = padded = 0

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        self.real += int(inputs["attention_mask"].sum()) + int(inputs["labels"].ne(-100).sum())
        self.padded += inputs["input_ids"].numel() + inputs["labels"].numel()
        return super().training_step(model, inputs, num_items_in_batch)


class Clock(TrainerCallback):
    """Times from the start of the first update to the end of the last.

    This leaves out the evaluation and the checkpoint.
    """

    begun = ended = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.begun = self.begun or time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ended = time.perf_counter()


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as place:
        result = measure(arguments, Path(place))
    write_text(arguments.out, json.dumps(result, indent=1))
    print(
        f"floater train: {result['floater']:,.0f} tokens/s, {100 * result['floater_padding']:.1f} %"
        f" padding\nSeq2SeqTrainer, group_by_length: {result['plain']:,.0f} tokens/s, "
        f"{100 * result['plain_padding']:.1f} % padding\nratio of medians "
        f"{result['floater'] / result['plain']:.2f} ({arguments.rounds} rounds of "
        f"{arguments.updates} updates)"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", type=Path, default=Path("configs/translation/multi30k-sinusoidal.yaml")
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/batching.json"))
    return parser.parse_args()


def measure(arguments: argparse.Namespace, place: Path) -> dict[str, Any]:
    config = TranslationConfig(
        **recipes.read(arguments.config, [f"training.updates={arguments.updates}"])
    )
    quiet = {"evaluate_every": 10**6, "save_every": 10**6, "log_every": 10**6, "tensorboard": False}
    config = config.model_copy(update={"training": config.training.model_copy(update=quiet)})
    folder = RunFolder(place / "run")
    task = TranslationTask(config)
    prepared = preparing.prepare(config, folder)
    set_seed(0)
    ours = make_model(config, prepared.vocabulary)
    batches = TokenBatches(prepared.train.lengths(), config.training.batch_tokens, 0)
    rows = round(
        len(prepared.train) / len(batches)
    )  # sentences a batch, so that both see equally many tokens an update
    plain = plain_model(ours)
    rates: dict[str, list[float]] = {"floater": [], "plain": []}
    padding = [0, 0]
    for number in track(range(arguments.rounds + 1), description="rounds", console=console):
        for name in random.sample(list(rates), 2):
            if name == "floater":
                trainer: Any = build_trainer(task, prepared, ours, folder, Console(quiet=True))
                folder.path.mkdir(exist_ok=True)
            else:
                trainer = plain_trainer(config, plain, prepared, rows, place / "plain", number)
            clock = Clock()
            trainer.add_callback(clock)
            trainer.train()
            seconds = clock.ended - clock.begun
            tokens = trainer.tokens if name == "floater" else trainer.real
            if name == "plain":
                padding[0] += trainer.real
                padding[1] += trainer.padded
            if number:  # the first round warms up
                rates[name].append(tokens / seconds)
    return {
        **{name: statistics.median(values) for name, values in rates.items()},
        "floater_padding": batches.padding(),
        "plain_padding": 1 - padding[0] / padding[1],
        "rates": rates,
        "settings": {key: str(value) for key, value in vars(arguments).items()},
        "rows_a_batch_plain": rows,
    }


def plain_model(ours: Any) -> MarianMTModel:
    """Return the same weights in the original transformers class, without an attachment."""
    copied = copy.deepcopy(ours)
    made = attachment(copied)
    assert made is not None
    made.detach()
    copied.__class__ = MarianMTModel
    return copied  # type: ignore[no-any-return]


def plain_trainer(
    config: TranslationConfig, model: Any, prepared: Any, rows: int, place: Path, seed: int
) -> Counting:
    data = [
        {"input_ids": source, "attention_mask": [1] * len(source), "labels": target}
        for source, target in (prepared.train[i] for i in range(len(prepared.train)))
    ]
    return Counting(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(place),
            max_steps=config.training.updates,
            per_device_train_batch_size=rows,
            train_sampling_strategy="group_by_length",
            label_smoothing_factor=config.training.label_smoothing,
            learning_rate=config.training.lr,
            max_grad_norm=0.0,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            use_cpu=True,
            seed=seed,
        ),
        train_dataset=data,
        data_collator=DataCollatorForSeq2Seq(prepared.vocabulary.tokenizer, model=model),
    )


if __name__ == "__main__":
    main()
