"""Table 6 of the paper: a recurrent network instead of the ODE."""

from __future__ import annotations

from ..attachments import attachment, from_pretrained
from ..encoders import Encoder
from ..runs.folder import RunFolder
from ..runs.results import Results, Table
from ..tasks.translation.model import MarianMTModel
from .base import ReproductionRequest, TrainingItem
from .parameter_counts import shared_parameters
from .result_tables import fact, scored, test_data, verdict
from .variants import HOUR, Sources, Variant

BLEU, PARAMETERS = "BLEU", "parameters"


class RecurrentTable(TrainingItem):
    """BLEU and number of parameters of each encoder."""

    name = "rnn"
    title = "A recurrent network instead of the ODE (Table 6)"
    sources = Sources(
        "translation/multi30k-{key}.yaml", "translation/wmt14/en-de-base-{key}.yaml", hurried=HOUR
    )
    variants = (
        Variant("flow-blocks", "flow", paper={BLEU: 28.57, PARAMETERS: 526_300}),
        Variant(
            "recurrent-1-scalar",
            "recurrent, 1 layer, scalar",
            paper={BLEU: 27.99, PARAMETERS: 263_200},
        ),
        Variant(
            "recurrent-2-scalar",
            "recurrent, 2 layers, scalar",
            paper={BLEU: 28.16, PARAMETERS: 526_300},
        ),
        Variant(
            "recurrent-1-vector",
            "recurrent, 1 layer, vector",
            paper={BLEU: 27.99, PARAMETERS: 1_050_000},
        ),
        Variant("recurrent-2-vector", "recurrent, 2 layers, vector"),
    )

    def reproduce(self, request: ReproductionRequest) -> Results:
        variants, runs = self.runs(request)
        table = Table(
            title=self.title,
            note=(
                f"{test_data(runs)}. Parameters of the dynamics are counted as in the paper, "
                "without the initial values p(0). The paper's numbers are for WMT14 en-de with 512 "
                "dimensions; its 1,050.0K matches two layers, not the one layer of its row."
            ),
            columns=[
                "encoder",
                "BLEU",
                "chrF",
                "of the dynamics",
                "position parameters",
                "training, s",
                "paper, BLEU",
                "paper, of the dynamics",
            ],
            rows=[
                [
                    variant.name,
                    scored(runs[variant.key], "bleu"),
                    scored(runs[variant.key], "chrf"),
                    dynamics_parameters(runs[variant.key][0]),
                    fact(runs[variant.key], "position_parameters"),
                    fact(runs[variant.key], "training_seconds"),
                    variant.published(BLEU),
                    variant.published(PARAMETERS),
                ]
                for variant in variants
            ],
        )
        line = f"On the test set: {verdict(variants, runs, 'bleu', 'BLEU')}."
        return self.results(request, runs).model_copy(update={"tables": [table], "summary": [line]})


def dynamics_parameters(run: RunFolder) -> int:
    """Parameters of the encoder of a run without the initial values p(0)."""
    attached = attachment(from_pretrained(MarianMTModel, run.model))
    assert attached is not None
    assert isinstance(attached.encoder, Encoder)
    return shared_parameters(attached.encoder)
