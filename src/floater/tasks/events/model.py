"""The model of the task `events`: events so far → type and time of the next one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..timed.model import TimedModel, TimedModelConfig
from .mixture import LogNormalMixture

_EMBEDDING = 0.5
"""Standard deviation of initial embeddings: tokens have about the scale of their encodings."""
_MIDDLE, _RANGE = -1.5, 2.5
"""Logarithms of scales of components are within ±range of the middle, so that equal gaps in the
data cannot raise the density without limit."""
_AT_A_TIME = 2_000_000  # components, when those of all types are computed


class EventModel(TimedModel):
    """Types and times of events → p(next type | history) · p(gap | history, next type).

    `config.prepared` holds the names of the types, how gaps are standardised, and settings of the
    head. A token sees itself and earlier ones.
    """

    causal = True

    def __init__(self, config: TimedModelConfig) -> None:
        super().__init__(config)
        prepared = config.prepared
        self.count, self.components = len(prepared["types"]), int(prepared["components"])
        self.center, self.spread = float(prepared["center"]), float(prepared["spread"])
        dim, dropout = self.dim, self.body.config.hidden_dropout_prob
        self.names = nn.Embedding(self.count, dim)
        self.slope = nn.Linear(1, dim) if prepared["gap_inputs"] else None
        self.type_head = nn.Sequential(
            nn.Linear(dim, dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(dim, self.count)
        )
        self.gap_hidden = nn.Linear(dim, dim)
        self.gap_types = nn.Embedding(self.count, dim) if prepared["given_type"] else None
        self.gap_head = nn.Sequential(
            nn.GELU(), nn.Dropout(dropout), nn.Linear(dim, 3 * self.components)
        )
        self.finish_building()

    def _init_weights(self, module: nn.Module) -> None:
        """Embeddings start larger than the body, whose weights start at 0.02; the components of the
        mixture start side by side.
        """
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        for own in (self.names, self.slope):
            if own is not None and module is own:
                nn.init.normal_(own.weight, std=_EMBEDDING)
        last = self.gap_head[-1]
        if module is last and isinstance(last, nn.Linear) and self.components > 1:
            with torch.no_grad():
                apart = torch.linspace(-2, 2, self.components)
                last.bias[self.components : 2 * self.components] = apart

    def states(self, times: Tensor, types: Tensor, gaps: Tensor, attention_mask: Tensor) -> Tensor:
        """Hidden states of histories [batch, length, dim].

        Args:
            times: of the events on the clock, float64 [batch, length].
            types: their numbers [batch, length].
            gaps: standardised time since the event before [batch, length].
            attention_mask: which are events, not padding.
        """
        embeds = self.names(types)
        if self.slope is not None:
            embeds = embeds + self.slope(gaps.unsqueeze(-1))
        return self.hidden(embeds, times, attention_mask)

    def log_types(self, states: Tensor) -> Tensor:
        """Logarithms of the probabilities of the next type [..., types]."""
        scores: Tensor = self.type_head(states)
        return scores.log_softmax(-1)

    def gaps_given(self, states: Tensor, types: Tensor) -> LogNormalMixture:
        """The density of the gap if the next event has this type [...]."""
        inner = self.gap_hidden(states)
        if self.gap_types is not None:
            inner = inner + self.gap_types(types)
        weights, means, scales = self.gap_head(inner).chunk(3, -1)
        scales = (_MIDDLE + _RANGE * torch.tanh((scales + 1) / _RANGE)).exp()
        return LogNormalMixture(weights.log_softmax(-1), means, scales, self.center, self.spread)

    def gaps_of_any(self, states: Tensor, log_types: Tensor) -> LogNormalMixture:
        """The density of the gap, whatever the next type [...]."""
        if self.gap_types is None:
            return self.gaps_given(states, torch.zeros(()))
        each = torch.arange(self.count, device=states.device)
        every = self.gaps_given(states.unsqueeze(-2), each)
        return LogNormalMixture(
            (every.log_weights + log_types.unsqueeze(-1)).flatten(-2),
            every.means.flatten(-2),
            every.scales.flatten(-2),
            self.center,
            self.spread,
        )

    def expected(self, states: Tensor, log_types: Tensor) -> tuple[Tensor, Tensor]:
        """Median and mean of the gap to the next event, in the unit of the raw times [...]."""
        rows, scores = states.flatten(0, -2), log_types.flatten(0, -2)
        size = max(1, _AT_A_TIME // (self.count * self.components))
        medians, means = [], []
        for first in range(0, len(rows), size):
            some = slice(first, first + size)
            mixture = self.gaps_of_any(rows[some], scores[some])
            medians.append(mixture.median())
            means.append(mixture.mean())
        shape = states.shape[:-1]
        return torch.cat(medians).view(shape), torch.cat(means).view(shape)

    def forward(
        self,
        times: Tensor,
        types: Tensor,
        gaps: Tensor,
        attention_mask: Tensor,
        next_types: Tensor,
        next_gaps: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """log p(next type) and log p(standardised log-gap | next type), both [batch, length].

        Args:
            times, types, gaps, attention_mask: see `states`.
            next_types, next_gaps: of the event after each; the model does not see them.
        """
        states = self.states(times, types, gaps, attention_mask)
        chosen = self.log_types(states).gather(-1, next_types.unsqueeze(-1)).squeeze(-1)
        return chosen, self.gaps_given(states, next_types).log_prob_standard(next_gaps)
