"""The `floater` command; also `python -m floater`, which torchrun and accelerate need."""

from . import stopping


def main() -> None:
    """Run the command line; Ctrl-C is handled before anything slow is imported."""
    stopping.listen()
    from .cli import main as run  # noqa: PLC0415  (typer and rich are slow to import)

    run()


if __name__ == "__main__":
    main()
