"""Peak memory of training steps, each variant in a process of its own; used by training.py."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from peers import SETTINGS
from step_models import CHANGEABLE, Shape, batch
from training_step import BASE, CACHED, CONTROL, TrainingStep, variant
from turns import save, show

STEPS = 3
ALLOCATIONS = {
    "in_use": {"MALLOC_MMAP_THRESHOLD_": "65536"},
    "default": {},
}
"""How the C library gets memory, by name. With its default settings it keeps blocks of up to 32 MB
in a heap, whose gaps depend on the order of all allocations; blocks that come from the system one
by one leave no gaps, so the largest resident size is that of the memory in use.
"""


def peak(arguments: argparse.Namespace, shape: Shape) -> int:
    """Return the largest resident size of this process after a few steps of the first variant, in
    bytes.
    """
    step = TrainingStep(variant(arguments.variants[0], shape))
    for _ in range(STEPS):
        step([batch(shape) for _ in range(arguments.accumulate)])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peaks(script: Path, arguments: argparse.Namespace, shape: Shape) -> None:
    """Print and save the largest resident size of each variant, with and without the gaps that the
    C library leaves.

    A new process starts from the largest size of this one, which holds no model and stays small.

    Args:
        script: what to start; with `--peak` it prints what :func:`peak` returns.
        arguments: the command line.
        shape: the sizes of the model.
    """
    command = [sys.executable, str(script), "--model", arguments.model, "--peak"]
    for option in (*CHANGEABLE, "threads", "accumulate"):
        if getattr(arguments, option) is not None:
            command += [f"--{option}", str(getattr(arguments, option))]
    sizes: dict[str, dict[str, int]] = {}
    for name in dict.fromkeys((BASE, CONTROL, *arguments.variants)):
        if name != CACHED and name not in SETTINGS:
            sizes[name] = {
                kind: _size_in_process([*command, "--variants", name], settings)
                for kind, settings in ALLOCATIONS.items()
            }
    facts = {
        name: {
            **size,
            **{f"extra_{kind}": size[kind] / sizes[BASE][kind] - 1 for kind in ALLOCATIONS},
        }
        for name, size in sizes.items()
    }
    save(arguments, "memory", model=arguments.model, shape=asdict(shape), variants=facts)
    show(
        f"Peak memory of {STEPS} training steps, {arguments.model}",
        ("variant", "in use", "extra", "with gaps of the C library", "extra"),
        (
            (
                name,
                *(
                    text
                    for kind in ALLOCATIONS
                    for text in (
                        f"{fact[kind] / 1e6:,.0f} MB",
                        f"{100 * fact[f'extra_{kind}']:+.2f} %",
                    )
                ),
            )
            for name, fact in facts.items()
        ),
    )


def _size_in_process(command: list[str], settings: dict[str, str]) -> int:
    """The size that a process prints, with the default settings of the C library but for these."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "GLIBC_TUNABLES" and not name.startswith("MALLOC_")
    }
    return int(subprocess.check_output(command, env=environment | settings).split()[-1])
