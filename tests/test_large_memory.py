"""Memory of a run does not grow with the number of layers and shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from large import peak, write


def bound(d: int, heads: int, kv_heads: int) -> float:
    """The promise: 1.5 times V and O of one layer in float32, and 300 MB."""
    return 1.5 * 4 * d * 128 * (heads + kv_heads) + 300e6


def test_peak_is_that_of_one_layer(tmp_path: Path) -> None:
    d, heads, kv_heads, layers = 1536, 32, 1, 8
    stored = 2 * d * 128 * (heads + kv_heads)  # 13 MB a layer
    folder = write(tmp_path / "m", layers, d, heads, kv_heads)
    two, eight = peak(folder, "2"), peak(folder)
    assert (two["layers"], eight["layers"]) == (2, layers)
    assert max(two["worst"], eight["worst"]) <= 1e-10
    assert eight["peak"] <= bound(d, heads, kv_heads)
    # Six more layers; the allocator may keep a piece of one or two.
    assert eight["peak"] - two["peak"] <= 2 * stored
    # Planted: a run that keeps what it read would be seen.
    assert peak(folder, hold="hold")["peak"] - two["peak"] > 4 * stored


@pytest.mark.slow
def test_peak_at_the_size_of_llama_70b(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", 3, 8192, 64, 8)
    found = peak(folder)
    assert found["worst"] <= 1e-10
    assert found["peak"] <= bound(8192, 64, 8)
