"""What every test starts from: at most two threads, no denormals, the same random numbers."""

from __future__ import annotations

import os

import pytest
import torch


def pytest_configure() -> None:
    # Threads that wait for each other on a core they share make small products a hundred times
    # slower.
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    torch.set_num_threads(min(2, len(os.sched_getaffinity(0))) if alone else 1)
    torch.set_flush_denormal(True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the slow tests, so that no worker is left with one of them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
