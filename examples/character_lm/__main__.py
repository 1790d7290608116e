"""`python -m examples.character_lm TEXT`: train on a text file."""

from __future__ import annotations

import argparse
from pathlib import Path

from floater.errors import FloaterError
from floater.training.run import run

from .task import CharacterConfig, CharacterData, CharacterTask, CharacterTraining


def main() -> None:
    """Train, evaluate, and leave a run folder that `floater report` and `floater plot` read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="a text file")
    parser.add_argument("--out", type=Path, default=Path("runs/characters"))
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--resume", action="store_true", help="continue a stopped run")
    arguments = parser.parse_args()
    try:
        config = CharacterConfig(
            data=CharacterData(text=arguments.text),
            training=CharacterTraining(updates=arguments.updates),
        )
        run(CharacterTask(config), arguments.out, resume=arguments.resume)
    except FloaterError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
