"""The kernel gives the same bits with every compiler and every processor that is at hand."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "tests/ode/kernel_harness.c", ROOT / "src/floater/ode/_kernel.c"]
X86 = "gcc", "clang"
pytestmark = pytest.mark.slow


def built(folder: Path, compiler: str, *options: str) -> Path:
    """Compile the kernel with the program that runs it, as setuptools does."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    program = folder / compiler
    flags = ["-O3", "-ffp-contract=fast", "-Wall", "-Wextra", "-Werror", *options]
    subprocess.run([compiler, *flags, "-o", program, *SOURCES], check=True)
    return program


def hashes(*command: str | Path) -> list[str]:
    """Run the program; the width of registers, then a hash of each result."""
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    if run.returncode == 1:
        pytest.skip("this machine cannot run the kernel")
    lines = run.stdout.splitlines()
    assert len(lines) == 1 + 26 * 12
    return lines


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return hashes(built(tmp_path_factory.mktemp("gcc"), "gcc"), "8")


@pytest.mark.parametrize("compiler", X86)
@pytest.mark.parametrize("width", ["8", "16"])
def test_compilers_and_registers(
    expected: list[str], tmp_path: Path, compiler: str, width: str
) -> None:
    found = hashes(built(tmp_path, compiler), width)
    if found[0] != f"width {width}":
        pytest.skip("this machine has no AVX-512")
    assert found[1:] == expected[1:]


def test_the_chosen_registers_change_nothing(expected: list[str], tmp_path: Path) -> None:
    assert hashes(built(tmp_path, "gcc"), "0")[1:] == expected[1:]


def test_arm(expected: list[str], tmp_path: Path) -> None:
    program = built(tmp_path, "aarch64-linux-gnu-gcc", "-static")
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("qemu-aarch64 is not installed")
    assert hashes("qemu-aarch64", program)[1:] == expected[1:]
