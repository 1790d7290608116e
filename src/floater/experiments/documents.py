"""Documents: sentences at times by their lengths, equidistant, and with sinusoidal positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..recipes import merge, read
from ..tasks.documents.task import DocumentsTask
from .base import ReproductionRequest
from .scheduler import Runs
from .timed import TimedComparison
from .variants import RANDOM_FLOW, Scale, config_file

PLACE_UPDATES = 300
"""Updates after which a flow on sentence lengths tells the generated documents apart."""
_SINUSOIDAL = {"kind": "sinusoidal"}


class DocumentsTable(TimedComparison):
    """Movie reviews; at the scale smoke, generated documents that order and lengths tell apart."""

    name = "documents"
    title = "Documents by the times of their sentences"
    positions = {  # noqa: RUF012  (declared in the base class)
        "sinusoidal": {"encoder": _SINUSOIDAL, "times": "index"},
        "flow-lengths": {"encoder": RANDOM_FLOW},
        "flow-equidistant": {"encoder": RANDOM_FLOW, "spacing": "equidistant"},
        "flow-index": {"encoder": RANDOM_FLOW, "times": "index"},
        "sinusoidal-lengths": {"encoder": _SINUSOIDAL},
        "none": {"encoder": {"kind": "none"}},
    }
    names = {  # noqa: RUF012
        "sinusoidal": "sinusoidal, indices",
        "flow-lengths": "flow, sentence lengths",
        "flow-equidistant": "flow, equidistant at the mean length",
        "flow-index": "flow, indices",
        "sinusoidal-lengths": "sinusoidal, sentence lengths",
        "none": "no positions",
    }
    flows = ("flow-lengths",)

    @property
    def anchors(self) -> str:
        return (
            "At the scale smoke, chance is 25, and the order of sentences alone allows 50. The "
            "paper proposes sentence lengths in Appendix C, without numbers."
        )

    def base_settings(self, scale: Scale) -> dict[str, Any]:
        if scale == "small":
            return read(config_file("documents/movie-reviews.yaml"))
        return places()

    def settings(self, request: ReproductionRequest) -> dict[str, dict[str, Any]]:
        """All runs share one folder for the vectors of a frozen encoder."""
        found = super().settings(request)
        cache = {"sentences": {"cache": str(request.folder / "vectors")}}
        return {
            key: merge(own, cache) if self._is_frozen(own) else own for key, own in found.items()
        }

    def _is_frozen(self, settings: Mapping[str, Any]) -> bool:
        task = self.task_of(settings)
        assert isinstance(task, DocumentsTask)
        return task.config.sentences.frozen and task.config.sentences.cache is None

    def runs(self, request: ReproductionRequest, settings: Mapping[str, Mapping[str, Any]]) -> Runs:
        first = next(iter(settings.values()))
        task = self.task_of(first)
        assert isinstance(task, DocumentsTask)
        if task.config.sentences.frozen:
            task.keep_vectors()  # before several processes would compute the same
        return super().runs(request, settings)


def places(updates: int = PLACE_UPDATES) -> dict[str, Any]:
    """Settings of a run on generated documents that only sentence lengths can tell apart."""
    return {
        "task": "documents",
        "data": {"synthetic": {}},
        "sentences": {"kind": "mean"},
        "model": {"preset": "tiny", "dropout": 0.0},
        "training": {
            "updates": updates,
            "lr": 0.003,
            "take": "last",
            "evaluate_every": updates,
            "save_every": updates,
            "threads": 1,
        },
    }
