"""The base class of language understanding tasks: fine-tune a pretrained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from torch import nn
from transformers import PreTrainedTokenizerBase, set_seed

from ...attachments import attachment, save_pretrained
from ...files import new_folder, record_hashes
from ...runs.folder import RunFolder
from .config import UnderstandingConfig
from .measured import MeasuredData, MeasuredTask
from .models import (
    ATTACHMENT,
    build,
    load_tokenizer,
    load_trained,
    locate,
    resolve,
    select_trained,
)
from .problem import Features, Split
from .variant_scores import StartOutputs, outputs_at_start


@dataclass(frozen=True)
class UnderstandingData(MeasuredData):
    """What is read and checked before training, with folder or hub name of the pretrained model."""

    base: str


S = TypeVar("S", bound=Split)
F = TypeVar("F", bound=Features)


class UnderstandingTask(MeasuredTask[S, F, UnderstandingData]):
    """Fine-tune a pretrained model, or train its position encoder alone."""

    config: UnderstandingConfig
    config_class: ClassVar[type[UnderstandingConfig]]

    @property
    def model_name(self) -> str:
        return self.config.model.name

    @property
    def trains(self) -> bool:
        return self.config.training.part != "nothing"

    # Before training ------------------------------------------------------------------------------

    def check(self, path: Path) -> None:
        locate(self.config.model.name)

    def resolve(self) -> UnderstandingTask[S, F]:
        return self.with_config(resolve(self.config))

    def without_limits(self) -> Self:
        data: Any = self.config
        whole = data.data.model_copy(update={"max_valid": None})
        return self.with_config(self.config.model_copy(update={"data": whole}))

    def prepare(self, folder: RunFolder) -> UnderstandingData:
        base = locate(self.config.model.name)
        tokenizer = load_tokenizer(base, pads=self.needs_padding_token)
        splits = self.splits()
        return UnderstandingData(
            tokenizer,
            splits,
            self.encode(splits["train"], tokenizer, training=True),
            self.encode(splits["valid"], tokenizer, training=False),
            base,
        )

    def build_model(self, data: UnderstandingData) -> nn.Module:
        model = build(self, data.base)
        if self.config.training.part == "head":
            self.prime(model, data.train)
        select_trained(model, self.config.training.part)
        return model

    def warnings(self, model: nn.Module, data: UnderstandingData) -> Sequence[str]:
        """Warn if trained dynamics are used on longer inputs than they were trained on."""
        attached = attachment(model)
        if self.config.dynamics is None or attached is None:
            return ()
        longest = int(data.train.lengths().max())
        excess = attached.excess(longest)
        table = None if excess is None else attached.site_tables(longest)
        if table is None:
            return ()
        last = min(attached.trained_range.values())
        trained = min(round(last / attached.delta) + 1, len(table))
        there, here = (float(table[at - 1].norm(dim=-1).mean()) for at in (trained, longest))
        return (
            f"{self.config.dynamics}: {excess}; past it nothing was learned (mean norm of the "
            f"encodings {there:.1f} at token {trained}, {here:.1f} at {longest}); train the "
            "dynamics on inputs as long as these, or lower `max_length`.",
        )

    # After training -------------------------------------------------------------------------------

    def load(self, path: Path) -> tuple[nn.Module, PreTrainedTokenizerBase]:
        model = load_trained(self, path)
        return model, load_tokenizer(str(path), pads=self.needs_padding_token)

    def load_checkpoint(self, folder: RunFolder, checkpoint: Path) -> nn.Module:
        return load_trained(self, checkpoint)

    def save(self, folder: RunFolder, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        """Save the model, and the encoder alone, as far as the config asks for them."""
        training = self.config.training
        if training.keep_model:
            with new_folder(folder.model) as temporary:
                if attachment(model) is None:
                    model.save_pretrained(temporary)
                else:
                    save_pretrained(model, temporary)
                tokenizer.save_pretrained(temporary)
                record_hashes(temporary)
        if training.part in ("flow", "start"):
            model.config._name_or_path = self.config.model.name
            with new_folder(folder.path / ATTACHMENT) as temporary:
                save_pretrained(model, temporary, base=False)
                record_hashes(temporary)

    # Comparing variants ---------------------------------------------------------------------------

    def outputs_at_start(self) -> StartOutputs:
        """The outputs before training, with a new encoder instead of a trained one."""
        fresh = self.with_config(self.config.model_copy(update={"dynamics": None}))
        data = fresh.prepare(RunFolder(Path()))
        set_seed(fresh.config.seed)
        model = fresh.build_model(data).eval()
        trained = self.config.dynamics is not None
        return outputs_at_start(fresh, model, data.valid, data.tokenizer, trained=trained)
