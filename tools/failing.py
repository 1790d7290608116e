"""How the tools report a mistake."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn


def fail(message: str) -> NoReturn:
    """Print one line that begins with the name of the tool, and end with exit code 2."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)
