"""Translation as a task: a Transformer trained from scratch, with any position encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from ...errors import ArgumentError, DataError, RunError
from ...files import check_hashes, file_hash, new_folder
from ...printing import print_text
from ...runs.folder import RunFolder
from ...runs.locks import in_use
from ...training.checkpoints import require_checkpoints
from ...training.loader import EpochLoader
from ...training.process import expecting_long_inputs
from ...training.settings import Pace
from ...training.task import FREE_SETTINGS, EvaluationRequest, Task
from ...training.world import ALONE, World
from . import corpus, evaluation, vocabulary
from .averaging import average_run, averaged_model, save_averaged
from .batches import Collate, TokenBatches
from .checks import check_inputs
from .config import SplitFiles, TranslationConfig
from .corpus import Pairs
from .decoding import Translator
from .evaluation import describe, evaluate
from .model import (
    MarianMTModel,
    attach_encoder,
    build,
    position_parameters,
    reinitialise_encoder,
    warm_start,
)
from .preparing import TranslationData, long_enough, prepare, resolve
from .validation import validate
from .vocabulary import Vocabulary

_VALIDATION = ("valid_beam", "valid_lines")
"""Settings of `decoding` that nothing but the validation BLEU depends on."""


class TranslationTask(Task[TranslationData]):
    """Translate sentences from one language to another."""

    config: TranslationConfig
    config_class = TranslationConfig
    evaluation_options = frozenset({"source", "target", "length_bins", "paper_bleu", "beam"})
    fused_optimizer = False
    main = "bleu"

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__(config)
        self.schedule = config.training.schedule
        if self.schedule != "linear":  # the rate does not depend on the last update
            self.free_settings = FREE_SETTINGS | {"updates"}

    def check(self, path: Path) -> None:
        check_inputs(self.config, path)

    def resolve(self) -> TranslationTask:
        return TranslationTask(resolve(self.config))

    def is_finished(self, folder: RunFolder) -> bool:
        """Whether the folder has this run's model and scores, undamaged, with the same settings.

        A damaged model is created again from the checkpoints.
        """
        if not all(path.is_dir() for path in (folder.model, folder.vocabulary)):
            return False
        if not folder.started():
            return False
        try:
            for path in (folder.model, folder.vocabulary):
                check_hashes(path, RunError, "")
        except RunError:
            return False
        if self.config.data.has_test() and "test" not in folder.scores().sets:
            return False
        if not self._has_same_settings(folder):
            return False
        return folder.finished() or folder.facts().get("updates") == self.config.training.updates

    def _has_same_settings(self, folder: RunFolder) -> bool:
        before, now = self.previous(folder).dump(), self.config.dump()
        if self.config.init_from is not None:
            now["vocabulary"] = before["vocabulary"]  # a warm start takes over the vocabulary
        if self.config.training.patience is None:  # no update depends on the validation BLEU
            for key in _VALIDATION:
                now["decoding"][key] = before["decoding"][key]
        return bool(before == now)

    def is_measured(self, folder: RunFolder) -> bool:
        if not folder.started() or not folder.finished() or not self._has_same_settings(folder):
            return False
        test = folder.scores().sets.get("test")
        return test is not None and all(
            (folder.predictions / name).is_file() and file_hash(folder.predictions / name) == known
            for name, known in test.files.items()
        )

    def prepare(self, folder: RunFolder) -> TranslationData:
        return prepare(self.config, folder)

    def build_model(self, data: TranslationData) -> MarianMTModel:
        model = make_model(self.config, data.vocabulary)
        model.label_smoothing = self.config.training.label_smoothing
        return model

    def begin(self, folder: RunFolder, data: TranslationData) -> None:
        if not folder.vocabulary.exists():
            with new_folder(folder.vocabulary) as temporary:
                data.vocabulary.save(temporary)

    def facts(self, model: nn.Module, data: TranslationData) -> dict[str, Any]:
        assert isinstance(model, MarianMTModel)
        batches = self._batches(data, ALONE)
        return {
            "training_pairs": len(data.train),
            "longest": int(data.train.lengths().max()),
            "vocabulary": len(data.vocabulary),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "position_parameters": position_parameters(model),
            "batches_per_epoch": len(batches),
            "padding": round(batches.padding(), 4),
        }

    def describe(self, facts: Mapping[str, Any]) -> str:
        return (
            f"{facts['training_pairs']:,} pairs in {facts['batches_per_epoch']:,} batches per "
            f"epoch ({100 * facts['padding']:.1f} % padding); {facts['parameters']:,} parameters, "
            f"{facts['position_parameters']:,} of them for positions ({facts['positions']})"
        )

    def pace(self, data: TranslationData) -> Pace:
        return self.config.training.pace()

    def loader(self, data: TranslationData, world: World) -> EpochLoader:
        collate = Collate(data.vocabulary.pad, data.vocabulary.start)
        return EpochLoader(data.train, self._batches(data, world), collate, self.config.seed)

    def _batches(self, data: TranslationData, world: World) -> TokenBatches:
        training = self.config.training
        return TokenBatches(
            data.train.lengths(),
            training.batch_tokens,
            self.config.seed,
            world=world,
            together=world.size * training.accumulate,
        )

    def measure(self, model: nn.Module, data: TranslationData, world: World) -> dict[str, float]:
        assert isinstance(model, MarianMTModel)
        return validate(self.config, model, data, world)

    def final_model(self, folder: RunFolder) -> MarianMTModel:
        return averaged_model(self._chosen(folder))

    def _chosen(self, folder: RunFolder) -> list[Path]:
        """The checkpoints whose mean is the final model."""
        return require_checkpoints(folder.checkpoints)[-(self.config.training.average or 1) :]

    def finish(
        self, folder: RunFolder, data: TranslationData, model: nn.Module, console: Console
    ) -> None:
        assert isinstance(model, MarianMTModel)
        chosen = self._chosen(folder)
        save_averaged(folder, model, chosen)
        print_text(console, f"the model is the mean of the last {len(chosen)} checkpoints")
        if data.test is None:
            return
        translator = Translator(model, data.vocabulary, self.config.decoding)
        edges = self.config.decoding.length_bins
        scores = evaluate(folder, translator, data.test, name="test", edges=edges, console=console)
        print_text(console, describe(scores))

    def average(self, folder: RunFolder, last: int, out: Path | None) -> Path:
        return average_run(folder, last, out)

    def evaluate(self, folder: RunFolder, request: EvaluationRequest, console: Console) -> None:
        """Translate and score a test set; optionally compare with another run."""
        other = None if request.against is None else RunFolder.existing(request.against)
        edges = _edges(request.length_bins)
        pairs, default_name = self._test_set(folder, request)
        name = request.name or default_name
        if request.source is None and not edges:
            edges = list(self.config.decoding.length_bins)  # as after training
        translator = evaluation.load(folder.path, request.model, request.beyond)
        with expecting_long_inputs(request.source is None):
            scores = evaluate(
                folder,
                translator,
                pairs,
                name=name,
                edges=edges,
                paper=request.paper_bleu,
                beam=request.beam,
            )
        print_text(console, describe(scores))
        if other is None:
            return
        theirs = other.scores().sets.get(name)
        settings = ("beam", "beyond")
        same = theirs is not None and (
            theirs.data,
            *(theirs.settings.get(key) for key in settings),
        ) == (scores.data, *(scores.settings.get(key) for key in settings))
        if not same:
            baseline = evaluation.load(other.path, beyond=request.beyond)
            with expecting_long_inputs():
                evaluate(other, baseline, pairs, name=name, beam=request.beam)
        with (
            in_use(folder.path, "evaluate", exclusive=False),
            in_use(other.path, "evaluate", exclusive=False),
        ):
            paired = evaluation.compare(other, folder, name)
            folder.add_paired([paired])
        print_text(
            console,
            f"against {request.against}: {paired.difference:+.2f} BLEU (95 % {paired.low:+.2f} to "
            f"{paired.high:+.2f}, p = {paired.p_value:.3f}; {paired.signature})",
        )

    def _test_set(self, folder: RunFolder, request: EvaluationRequest) -> tuple[Pairs, str]:
        """The test set of a request, and the name under which it is stored by default."""
        if (request.source is None) != (request.target is None):
            raise ArgumentError(
                "`--source` and `--target` belong together, but only one was given."
            )
        if request.source is not None:
            files = SplitFiles(source=request.source, target=request.target)
            data = self.config.data.model_copy(
                update={"hub": None, "embedded": None, "test": files}
            )
            pairs = corpus.load(data, "test")
            assert pairs is not None
            return pairs, request.source.name.removesuffix(".gz").rsplit(".", 1)[0]
        pairs = long_enough(
            corpus.load(self.config.data, "test"),
            vocabulary.load(folder.vocabulary),
            self.config.data.min_test_tokens,
        )
        if pairs is None:
            raise DataError(
                f"The config of {folder.path} names no test set; give --source and --target."
            )
        return pairs, "test"


def make_model(config: TranslationConfig, vocabulary: Vocabulary) -> MarianMTModel:
    """The model at the start of a run."""
    model = build(config.model, vocabulary)
    attach_encoder(model, config.positions)
    if config.init_from is not None:
        warm_start(model, RunFolder.existing(config.init_from).model)
        if config.init_scale is not None:
            reinitialise_encoder(model, config.init_scale)
    return model


def _edges(text: str) -> list[int]:
    if not text:
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(
            f"`--length-bins` must be integers with commas between them, but is {text!r}."
        ) from None
