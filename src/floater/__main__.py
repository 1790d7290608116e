"""The `floater` command, and `python -m floater`, which launchers such as torchrun and accelerate
need.
"""

from . import stopping


def main() -> None:
    """Entry point: Ctrl-C is heard before anything slow is imported."""
    stopping.listen()
    from .cli import main as run  # noqa: PLC0415  (typer and rich take a while)

    run()


if __name__ == "__main__":
    main()
