"""Settings of the task `documents`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ...config import Config, Count
from ...encoders import NoPositionConfig
from ...errors import ConfigError
from ...times import DELTA, Clock
from ..timed.config import TimedConfig, TimedPositions
from ..timed.folds import SplitConfig


class Fields(Config):
    """Names of the fields of a line."""

    id: str | None = "id"
    """What names a document. null: the number of its line."""
    text: str = "text"
    """A list of texts, or one text; `data.split` says what is a sentence in it."""
    label: str = "label"
    fold: str | None = None
    """The number of a document's fold, from 0, where the file divides the documents itself."""


class Places(Config):
    """Generated documents of four classes: which of two sentences comes first, and whether it comes
    after few or many tokens.

    All other sentences repeat one word, and all documents have the same number of tokens. So the
    order of sentences tells two of the classes from the other two, and only their lengths tell all
    four apart.
    """

    documents: Annotated[int, Field(ge=40, le=10**6)] = 2000
    tokens: Annotated[int, Field(ge=30, le=10**4)] = 60
    """Tokens of the sentences that repeat a word, of each document."""


class DocumentData(SplitConfig):
    """Where the documents are, and what is a sentence."""

    documents: Path | None = None
    """JSON lines, plain or .gz: one document per line."""
    test: Path | None = None
    """Another file as the test set, instead of a part of `documents`."""
    synthetic: Places | None = None
    """Generated documents, instead of files."""
    fields: Fields = Fields()
    split: Literal["given", "lines", "library"] = "given"
    """What is a sentence. given: an entry of the list. lines: a line of the text. library: what
    the package syntok finds in the text, for languages of Western Europe.
    """
    max_sentences: Count = 128
    """Longest document; of a longer one the first sentences are used, and the run says how many
    documents that concerns.
    """

    @model_validator(mode="after")
    def _has_a_source(self) -> DocumentData:
        if (self.documents is None) == (self.synthetic is None):
            raise ValueError("give either `documents`, a file, or `synthetic`")
        if self.test is not None and (self.folds is not None or self.synthetic is not None):
            raise ValueError("`test` is a file beside `documents`, without `folds`")
        if self.fields.fold is not None and self.folds is None:
            raise ValueError("`fields.fold` needs `folds`, the number of folds")
        return self


class SentenceConfig(Config):
    """How the words of a sentence become its vector."""

    kind: Literal["transformer", "mean", "pretrained"] = "transformer"
    """transformer: one from scratch, with a table of word positions; the mean of its outputs.
    mean: the mean of word embeddings, which knows neither order nor length. pretrained: a
    sentence encoder, such as MiniLM; the mean of its outputs.
    """
    name: str | None = None
    """The pretrained one: a folder, a name on the hub, or `pip:package/folder`."""
    trained: bool = False
    """Train the pretrained encoder too. Otherwise it is frozen: its vectors are computed once."""
    cache: Path | None = None
    """Folder that keeps the vectors of a frozen encoder for other runs. Default: in memory only."""
    layers: Count = 1
    """Of a Transformer from scratch; its width is the body's."""
    max_words: Annotated[int, Field(ge=3, le=4096)] = 64
    """Tokens of a sentence that its vector sees; the clock counts all of them."""
    vocabulary: Annotated[int, Field(ge=3, le=10**6)] = 20_000
    """Most frequent words that are known, without a pretrained encoder."""

    @property
    def frozen(self) -> bool:
        """Whether sentence vectors do not change in training."""
        return self.kind == "pretrained" and not self.trained

    @model_validator(mode="after")
    def _named(self) -> SentenceConfig:
        if (self.kind == "pretrained") != (self.name is not None):
            raise ValueError("`name` must be given for `kind: pretrained`, and for nothing else")
        if self.trained and self.kind != "pretrained":
            raise ValueError("`trained` is for `kind: pretrained`; others are always trained")
        if self.cache is not None and not self.frozen:
            raise ValueError("`cache` is for a pretrained encoder that is not `trained`")
        return self


class DocumentPositions(TimedPositions):
    """Which encoder, at which sites, on which times of the sentences."""

    spacing: Literal["lengths", "equidistant"] = "lengths"
    """With `times: real`. lengths: a sentence stands at the number of tokens before it, on the
    clock. equidistant: every sentence takes as much time as the mean sentence of the training set.
    """

    @model_validator(mode="after")
    def _spaced(self) -> DocumentPositions:
        if self.spacing == "equidistant" and self.times == "index":
            raise ValueError(
                "`spacing: equidistant` needs `times: real`; on indices, sentences are Δ apart"
            )
        return self

    def described(self) -> str:
        if self.times == "index" or isinstance(self.encoder, NoPositionConfig):
            return super().described()
        label = "sentence lengths" if self.spacing == "lengths" else "equidistant sentences"
        return super().described().replace("real times", label)


class DocumentsConfig(TimedConfig):
    """The settings of one run."""

    task: Literal["documents"] = "documents"
    data: DocumentData
    sentences: SentenceConfig = SentenceConfig()
    clock: Clock = Clock(name="tokens", origin=0.0, scale=DELTA)
    positions: DocumentPositions = DocumentPositions()

    @model_validator(mode="after")
    def _counts_tokens(self) -> DocumentsConfig:
        if self.clock.origin not in ("first", 0.0):
            raise ValueError("`clock.origin` must be 0: the first sentence has no tokens before it")
        if self.clock.name not in ("", "tokens"):
            raise ValueError("`clock.name` must be tokens, which the clock of sentences counts")
        return self

    def variants(self) -> dict[str, Any]:
        """By default: sinusoidal sentence positions, the run's own encoder on equidistant
        sentences, and on sentence lengths.
        """
        if self.compare.variants:
            return super().variants()
        if self.positions.times == "index":
            raise ConfigError(
                "`compare.variants` must name variants where `positions.times` is index, but is "
                "empty."
            )
        own = self.positions.dump()
        return {
            "sinusoidal": self.with_positions(
                {"encoder": {"kind": "sinusoidal"}, "times": "index"}
            ),
            "equidistant": self.with_positions({**own, "spacing": "equidistant"}),
            "lengths": self.with_positions({**own, "spacing": "lengths"}),
        }
