"""Files of SQuAD's schema, small enough to see through."""

from __future__ import annotations

from typing import Any

from floater.tasks.squad.data import Answer, SquadQuestion

CONTEXT = (
    "The Normans were the people who in the 10th and 11th centuries gave their name to Normandy, a "
    "region in France. Rollo, their leader, agreed to swear fealty to King Charles III of West "
    "Francia in 911. Zoë's café in Málaga opened in 1999."
)


def answer(text: str, context: str = CONTEXT) -> dict[str, Any]:
    return {"text": text, "answer_start": context.index(text)}


def entry(name: str, text: str, *answers: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "question": text, "answers": [answer(text) for text in answers], **more}


def file(*entries: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    return {
        "version": "v2.0",
        "data": [{"title": "Normans", "paragraphs": [{"context": context, "qas": list(entries)}]}],
    }


def ask(name: str, *answers: str, text: str = "Who?", context: str = CONTEXT) -> SquadQuestion:
    return SquadQuestion(
        name, text, context, tuple(Answer(answer, context.index(answer)) for answer in answers)
    )


def question_with(name: str, *answers: str) -> SquadQuestion:
    """A question whose context is of no matter."""
    return SquadQuestion(name, "Who?", "", tuple(Answer(text, 0) for text in answers))
