"""The model of the task `series`: observations → tokens → the body → predictions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..timed.model import TimedModel, TimedModelConfig

_EMBEDDING, _LINEAR = 0.5, 0.1
"""Standard deviations of initial weights: tokens have about the scale of their encodings."""


class SeriesModel(TimedModel):
    """Value, variable and time of every observation → a class, a number, or values at asked times.

    `config.prepared` holds the sizes: variables, statics, outputs, and what is predicted.
    """

    def __init__(self, config: TimedModelConfig) -> None:
        super().__init__(config)
        sizes = config.prepared["sizes"]
        self.by_time, self.asks, self.pool = sizes["by_time"], sizes["asks"], sizes["pool"]
        variables, dim = sizes["variables"], self.dim
        self.whole = nn.Embedding(1, dim)
        if self.by_time:
            self.values = nn.Sequential(
                nn.Linear(2 * variables, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
            )
        else:
            self.names = nn.Embedding(variables + 1, dim)
            self.slopes = nn.Embedding(variables + 1, dim)
        self.static = nn.Linear(sizes["statics"], dim) if sizes["statics"] else None
        self.questions = nn.Embedding(variables + 1, dim) if self.asks else None
        self.head = nn.Sequential(
            nn.Linear(dim, dim),
            nn.GELU(),
            nn.Dropout(self.body.config.hidden_dropout_prob),
            nn.Linear(dim, sizes["outputs"]),
        )
        self.finish_building()

    def _init_weights(self, module: nn.Module) -> None:
        """What makes tokens starts larger than the body, whose weights start at 0.02."""
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        for own in self._makers():
            if module is own:
                std = _LINEAR if isinstance(own, nn.Linear) else _EMBEDDING
                nn.init.normal_(own.weight, std=std)

    def _makers(self) -> list[nn.Linear | nn.Embedding]:
        """What makes tokens."""
        of_values = list(self.values) if self.by_time else [self.names, self.slopes]
        parts = [self.whole, self.static, self.questions, *of_values]
        return [part for part in parts if isinstance(part, nn.Linear | nn.Embedding)]

    def forward(
        self,
        times: Tensor,
        values: Tensor,
        variables: Tensor,
        static: Tensor,
        attention_mask: Tensor,
        observed: Tensor | None = None,
        asked: Tensor | None = None,
    ) -> Tensor:
        """Outputs [batch, outputs] of whole series, or [batch, length] of asked values.

        Args:
            times: of the tokens, float64 [batch, length]; the first one stands for the series.
            values: standardised [batch, length], or [batch, length, variables] by time.
            variables: [batch, length].
            static: what describes the whole series [batch, statics].
            attention_mask: the tokens that are seen: not padding, and not asked about.
            observed: by time, which values there are [batch, length, variables].
            asked: which tokens are asked about.
        """
        if self.by_time:
            assert observed is not None
            embeds = self.values(torch.cat((values, observed), -1))
        else:
            embeds = self.names(variables) + values.unsqueeze(-1) * self.slopes(variables)
        whole = self.whole.weight[0]
        if self.static is not None:
            whole = whole + self.static(static).unsqueeze(1)
        first = torch.arange(embeds.shape[1], device=embeds.device).eq(0).view(1, -1, 1)
        embeds = torch.where(first, embeds + whole, embeds)
        is_token = attention_mask.bool()
        if self.questions is not None and asked is not None:
            embeds = torch.where(asked.unsqueeze(-1), self.questions(variables), embeds)
            is_token = is_token | asked
        hidden = self.hidden(embeds, times, attention_mask, is_token)
        if self.asks:
            outputs: Tensor = self.head(hidden).squeeze(-1)
            return outputs
        if self.pool == "mean":
            weights = attention_mask.unsqueeze(-1).to(hidden)
            pooled = (hidden * weights).sum(1) / weights.sum(1)
        else:
            pooled = hidden[:, 0]
        scores: Tensor = self.head(pooled)
        return scores
