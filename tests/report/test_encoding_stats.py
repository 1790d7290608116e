"""Statistics of encodings whose values are known, and how the page packs them."""

from __future__ import annotations

import numpy as np
import pytest

from floater.report import encoding_stats
from floater.report.packing import BUDGET, pack, site_statistics, unpack
from floater.runs.encodings import Encodings

from .folders import circle


def test_dimensions_are_ordered_from_fast_to_slow() -> None:
    t = np.linspace(0, 20, 200)[:, None]
    table = np.sin(t * np.array([1.0, 4.0, 2.0]))
    assert encoding_stats.by_speed(table).tolist() == [1, 2, 0]
    assert sorted(encoding_stats.by_speed(np.zeros((1, 4))).tolist()) == [0, 1, 2, 3]


def test_a_circle_in_many_dimensions_is_a_circle_in_its_plane() -> None:
    angle = np.linspace(0, 2 * np.pi, 50, endpoint=False)
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 2)))[0].T
    points, shares = encoding_stats.plane(
        3 * np.stack([np.cos(angle), np.sin(angle)], 1) @ axes + 7
    )
    assert np.allclose(np.linalg.norm(points, axis=1), 3)
    assert shares == pytest.approx((0.5, 0.5))
    assert encoding_stats.flatness(circle(1, 30, 6).tables[0]) == pytest.approx(
        sum(encoding_stats.plane(circle(1, 30, 6).tables[0])[1])
    )


def test_the_plane_of_a_single_point_and_of_one_dimension() -> None:
    assert encoding_stats.plane(np.ones((1, 4)))[0].tolist() == [[0, 0]]
    points, shares = encoding_stats.plane(np.arange(5.0)[:, None])
    assert shares == pytest.approx((1, 0))
    assert np.allclose(np.abs(points[:, 0]), [2, 1, 0, 1, 2])


def test_the_spectrum_peaks_at_the_frequency_of_the_wave() -> None:
    wave = np.sin(2 * np.pi * 0.125 * np.arange(128))
    frequencies, power = encoding_stats.spectrum(np.stack([wave, 0.01 * wave], 1))
    assert frequencies[power[:, 0].argmax()] == pytest.approx(0.125)
    assert power.max() == pytest.approx(0)
    assert power[:, 1].max() == pytest.approx(-40)


def test_similarity_is_the_products_of_rows() -> None:
    table = circle().tables[0]
    products = encoding_stats.similarity(table)
    assert np.allclose(products, products.T)
    assert products[2, 5] == pytest.approx(float(table[2] @ table[5]), rel=1e-5)


def test_packed_encodings_are_close_and_small() -> None:
    encodings = circle(1, 200, 8)
    packed = pack(encodings, BUDGET)
    assert packed["step"] == 1
    assert np.abs(unpack(packed) - encodings.tables).max() <= np.abs(encodings.tables).max() / 8191
    assert len(packed["data"]) < 0.7 * encodings.tables.nbytes


@pytest.mark.parametrize("budget", [150_000, 20_000])
def test_packing_stays_within_its_budget(budget: int) -> None:
    noise = np.random.default_rng(0).normal(size=(6, 200, 64)).astype(np.float32)
    encodings = Encodings(np.arange(200) * 0.1, noise, tuple("abcdef"), "learned", "learned", None)
    packed = pack(encodings, budget)
    assert len(packed["data"]) <= budget
    limit = np.abs(noise).max((1, 2))[:, None, None] / 127
    assert (np.abs(unpack(packed) - noise[:, :, :: packed["step"]]) <= limit).all()


def test_zero_encodings_can_be_packed_and_have_statistics() -> None:
    encodings = Encodings(
        np.arange(3) * 0.1, np.zeros((1, 3, 4), np.float32), ("input",), "flow", "flow", None
    )
    assert not unpack(pack(encodings, BUDGET)).any()
    assert site_statistics(encodings) == [["input", 0.0, 0.0, 0.0, 0.0, 0.0]]


def test_statistics_of_a_site() -> None:
    table = np.array([[[3.0, 4.0], [3.0, 4.0], [3.0, 5.0]]], np.float32)
    row = site_statistics(Encodings(np.arange(3) * 0.1, table, ("input",), "flow", "flow", None))[0]
    assert row == [
        "input",
        pytest.approx(5),
        pytest.approx((10 + 34**0.5) / 3),
        pytest.approx(34**0.5),
        pytest.approx(0.5),
        pytest.approx(100),
    ]
