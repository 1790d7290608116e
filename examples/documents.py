"""Classify documents from a JSON lines file of your own, by their sentences.

    python -m examples.documents reviews.jsonl --out runs/documents

Every line has id, text and label: {"id": "r1", "text": ["First sentence.", "Second."], "label":
"good"}. With `--split lines` or `--split library`, text is plain text instead. In the first model a
sentence stands at the number of tokens before it; in the second one, sentences are equidistant.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from floater.errors import FloaterError
from floater.runs.folder import RunFolder
from floater.tasks.documents.config import DocumentData, DocumentPositions, DocumentsConfig
from floater.tasks.documents.task import DocumentsTask
from floater.tasks.timed.config import TimedTraining
from floater.training.run import run
from floater.training.task import EvaluationRequest, PredictionRequest


def main() -> None:
    """Train on sentence lengths and on equidistant sentences, compare both, write predictions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", type=Path)
    parser.add_argument("--split", choices=("given", "lines", "library"), default="given")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/documents"))
    arguments = parser.parse_args()
    try:
        tasks = {
            spacing: DocumentsTask(
                DocumentsConfig(
                    data=DocumentData(documents=arguments.documents, split=arguments.split),
                    positions=DocumentPositions.model_validate({"spacing": spacing}),
                    training=TimedTraining(epochs=arguments.epochs),
                )
            )
            for spacing in ("lengths", "equidistant")
        }
        for spacing, task in tasks.items():
            run(task, arguments.out / spacing, resume=True)
        best, control = RunFolder(arguments.out / "lengths"), arguments.out / "equidistant"
        tasks["lengths"].evaluate(best, EvaluationRequest(against=control), Console())
        wanted = PredictionRequest(arguments.documents, arguments.out / "predictions.csv")
        tasks["lengths"].write_predictions(best, wanted, Console())
    except FloaterError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
