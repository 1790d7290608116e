"""`floater reproduce events`: every encoder is valid at both scales."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from floater.experiments.base import ReproductionRequest
from floater.experiments.reproduce import ITEMS
from floater.experiments.timed import POSITIONS


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_every_variant_is_valid(
    scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATER_DATA", "data")
    request = ReproductionRequest(scale, tmp_path, (0,), 1, Console(quiet=True))  # type: ignore[arg-type]
    checked = ITEMS["events"].check(request)
    assert checked is not None
    assert len(checked.tables[0].rows) == len(POSITIONS)
