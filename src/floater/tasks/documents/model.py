"""The model of the task `documents`: words → sentence vectors → the body → a class."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, BertConfig, BertModel

from ..timed.model import TimedModel, TimedModelConfig
from .config import DocumentPositions
from .pretrained import mean_state, without_pooler

_EMBEDDING, _LINEAR = 0.5, 0.05
"""Standard deviations of initial weights: sentences have about the scale of their encodings."""


class DocumentModel(TimedModel):
    """Sentences at their times → the scores of the classes.

    `config.prepared["sentences"]` says how words become sentence vectors, with all sizes.
    """

    positions_class = DocumentPositions

    def __init__(self, config: TimedModelConfig) -> None:
        super().__init__(config)
        settings, dropout = config.prepared["sentences"], self.body.config.hidden_dropout_prob
        self.kind: str = settings["kind"]
        self.words: Any = None
        if self.kind == "mean":
            self.words = nn.Embedding(settings["vocabulary"], self.dim)
        elif self.kind == "transformer":
            self.words = BertModel(
                BertConfig(
                    vocab_size=settings["vocabulary"],
                    hidden_size=self.dim,
                    num_hidden_layers=settings["layers"],
                    num_attention_heads=self.body.config.num_attention_heads,
                    intermediate_size=self.body.config.intermediate_size,
                    hidden_dropout_prob=dropout,
                    attention_probs_dropout_prob=dropout,
                    max_position_embeddings=settings["max_words"],
                    type_vocab_size=1,
                    use_cache=False,
                ),
                add_pooling_layer=False,
            )
        elif self.kind == "trained":
            own = dict(settings["config"])
            built = AutoConfig.for_model(own.pop("model_type"), **own)
            self.words = without_pooler(AutoModel.from_config(built, trust_remote_code=False))
        self.project: nn.Module = nn.Identity()
        if self.kind in ("frozen", "trained"):
            width = settings["width"]
            self.project = nn.Sequential(
                nn.LayerNorm(width), nn.Dropout(dropout), nn.Linear(width, self.dim)
            )
        self.head = nn.Sequential(
            nn.Linear(self.dim, self.dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(self.dim, len(config.prepared["classes"])),
        )
        self.finish_building()

    def _init_weights(self, module: nn.Module) -> None:
        """What makes sentence vectors starts larger than the body, whose weights start at 0.02."""
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if module is self.words and isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=_EMBEDDING)
        if isinstance(self.project, nn.Sequential) and module is self.project[-1]:
            assert isinstance(module, nn.Linear)
            nn.init.normal_(module.weight, std=_LINEAR)

    def sentence_vectors(self, words: Tensor, word_mask: Tensor) -> Tensor:
        """Vectors [sentences, width] of sentences, each by itself.

        Args:
            words: [sentences, length].
            word_mask: 1 where there is a word.
        """
        if self.kind == "mean":
            weights = word_mask.unsqueeze(-1).to(self.words.weight)
            mean: Tensor = (self.words(words) * weights).sum(1) / weights.sum(1)
            return mean
        return mean_state(self.words, words, word_mask)

    def forward(
        self,
        times: Tensor,
        attention_mask: Tensor,
        vectors: Tensor | None = None,
        words: Tensor | None = None,
        word_mask: Tensor | None = None,
    ) -> Tensor:
        """Scores [batch, classes] of documents.

        Args:
            times: of the sentences, float64 [batch, sentences].
            attention_mask: 1 where there is a sentence.
            vectors: of the sentences [batch, sentences, width], where they do not change.
            words: of the sentences [batch, sentences, length], otherwise.
            word_mask: 1 where there is a word.
        """
        if vectors is None:
            assert words is not None
            assert word_mask is not None
            seen = attention_mask.bool()  # padding is not encoded
            found = self.sentence_vectors(words[seen], word_mask[seen])
            vectors = found.new_zeros(*seen.shape, found.shape[-1])
            vectors = vectors.masked_scatter(seen.unsqueeze(-1), found)
        embeds = self.project(vectors)
        hidden = self.hidden(embeds, times, attention_mask)
        weights = attention_mask.unsqueeze(-1).to(hidden)
        scores: Tensor = self.head((hidden * weights).sum(1) / weights.sum(1))
        return scores
