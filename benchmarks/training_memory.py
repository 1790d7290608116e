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


def peak(arguments: argparse.Namespace, shape: Shape) -> int:
    """Return the largest resident size of this process after a few steps of the first variant, in
    bytes.
    """
    step = TrainingStep(variant(arguments.variants[0], shape))
    for _ in range(STEPS):
        step([batch(shape) for _ in range(arguments.accumulate)])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peaks(script: Path, arguments: argparse.Namespace, shape: Shape) -> None:
    """Print and save the largest resident size of each variant.

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
    # sizes are those of the C library's default settings, whatever those of this process are
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    sizes: dict[str, int] = {}
    for name in dict.fromkeys((BASE, CONTROL, *arguments.variants)):
        if name != CACHED and name not in SETTINGS:
            told = subprocess.check_output([*command, "--variants", name], env=environment)
            sizes[name] = int(told.split()[-1])
    extra = {name: size / sizes[BASE] - 1 for name, size in sizes.items()}
    facts = {name: {"bytes": size, "extra": extra[name]} for name, size in sizes.items()}
    save(arguments, "memory", model=arguments.model, shape=asdict(shape), variants=facts)
    show(
        f"Peak memory of {STEPS} training steps, {arguments.model}",
        ("variant", "resident", "extra"),
        ((n, f"{size / 1e6:,.0f} MB", f"{100 * extra[n]:+.2f} %") for n, size in sizes.items()),
    )
