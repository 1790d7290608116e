"""The position encodings of a trained model, stored in its run folder."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import ArgumentError, RunError, brief, first_line
from ..files import write_bytes

ENCODINGS = "positions.safetensors"
MAX_POSITIONS = 256
"""Largest number of positions that a run stores."""
_FORMAT = "1"


@dataclass(frozen=True)
class Encodings:
    """Encodings of positions 0, 1, … at every site of a model.

    Attributes:
        times: [T].
        tables: [site, T, dim].
        sites: name of each site.
        kind: kind of the encoder.
        description: a short description.
        trained: length of the longest training example; None if unknown.
        every: stride of the positions that are included.
    """

    times: NDArray[np.floating]
    tables: NDArray[np.floating]
    sites: tuple[str, ...]
    kind: str
    description: str
    trained: int | None = None
    every: int = 1

    def site(self, name: str) -> Encodings:
        """The encodings of one site."""
        if name not in self.sites:
            raise ArgumentError(
                f"`site` must be one of {', '.join(map(repr, self.sites))}, but is {name!r}."
            )
        index = self.sites.index(name)
        return self._with(self.times, self.tables[index : index + 1], (name,))

    def first(self, length: int) -> Encodings:
        """The first `length` positions."""
        return self._with(self.times[:length], self.tables[:, :length], self.sites)

    def thinned(self, most: int) -> Encodings:
        """At most `most` positions, evenly spaced from the first one."""
        step = -(-len(self.times) // most)
        if step <= 1:
            return self
        known = None if self.trained is None else -(-self.trained // step)
        tables = self.tables[:, ::step]
        return Encodings(
            self.times[::step],
            tables,
            self.sites,
            self.kind,
            self.description,
            known,
            step * self.every,
        )

    def _with(
        self, times: NDArray[np.floating], tables: NDArray[np.floating], sites: tuple[str, ...]
    ) -> Encodings:
        return Encodings(
            times, tables, sites, self.kind, self.description, self.trained, self.every
        )

    def write(self, folder: Path) -> Path:
        """Write `positions.safetensors` into a folder."""
        about = {
            "sites": list(self.sites),
            "kind": self.kind,
            "description": self.description,
            "trained": self.trained,
        }
        tensors: dict[str, NDArray[Any]] = {
            "times": np.ascontiguousarray(self.times, np.float64),
            "tables": np.ascontiguousarray(self.tables, np.float32),
        }
        words = json.dumps(about)
        metadata = {
            "format": _FORMAT,
            "positions": words,
            "sha256": _hash(words, tensors["times"], tensors["tables"]),
        }
        write_bytes(folder / ENCODINGS, save(tensors, metadata))
        return folder / ENCODINGS

    @classmethod
    def read(cls, folder: Path) -> Encodings | None:
        """Read the file of a folder; None if there is none."""
        path = folder / ENCODINGS
        if not path.exists():
            return None
        try:
            with safe_open(os.fspath(path), framework="numpy") as file:
                metadata = file.metadata() or {}
                times, tables = file.get_tensor("times"), file.get_tensor("tables")
            if metadata.get("sha256", "") not in ("", _hash(metadata["positions"], times, tables)):
                raise ValueError("its hash is not the recorded one")
            about: dict[str, Any] = json.loads(metadata["positions"])
            trained = about["trained"]
            if trained is not None and not 0 < int(trained) < 10**9:
                raise ValueError(f"`trained` must be a length, but is {brief(trained)}")
            encodings = cls(
                times.astype(np.float64),
                tables.astype(np.float32),
                tuple(map(str, about["sites"])),
                str(about["kind"]),
                str(about["description"]),
                None if trained is None else int(trained),
            )
        except (
            SafetensorError,
            OSError,
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            RecursionError,
        ) as error:
            raise RunError(
                f"{path} is damaged: {first_line(error)}; remove it, and `floater plot {folder}` "
                "creates it again."
            ) from None
        shape = (len(encodings.sites), len(encodings.times))
        if (
            times.ndim != 1
            or not np.isfinite(encodings.times).all()
            or tables.ndim != 3
            or tables.shape[:2] != shape
            or 0 in tables.shape
            or not np.isfinite(tables).all()
        ):
            raise RunError(
                f"{path} must hold finite times and encodings [{shape[0]} sites, {shape[1]} times, "
                f"dim], but holds {list(tables.shape)}; remove it, and `floater plot {folder}` "
                "creates it again."
            )
        return encodings


def _hash(words: str, *arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256(words.encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
