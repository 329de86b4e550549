from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data.dataset.arrays import ArrayReader, pieces, range_positions, user_runs

if TYPE_CHECKING:
    import pytest


def test_slices_are_read_as_numpy_would(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("array") / "x.npy"
    values = np.arange(17, dtype=np.int64) ** 2
    np.save(path, values)
    array = ArrayReader(path)
    assert len(array) == 17
    for span in (slice(0, 17), slice(3, 8), slice(16, 99), slice(5, 5), slice(9, 2), slice(None)):
        assert array[span].tolist() == values[span].tolist()
    assert [piece.tolist() for piece in pieces(array, 7)] == [
        piece.tolist() for piece in pieces(values, 7)
    ]
    assert [len(piece) for piece in pieces(array, 7)] == [7, 7, 3]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 12))
def test_runs_are_as_long_as_asked_up_to_one_user(lengths: list[int], rows: int) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    runs = user_runs(offsets, rows)
    assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])]
    assert runs[-1].stop == len(lengths)
    assert all(run.stop > run.start for run in runs)
    assert max(offsets[run.stop] - offsets[run.start] for run in runs) <= rows + max(lengths)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=12))
def test_positions_of_ranges(ranges: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in ranges], dtype=np.int64)
    ends = np.array([start + length for start, length in ranges], dtype=np.int64)
    positions, offsets = range_positions(starts, ends)
    found = [positions[a:b].tolist() for a, b in pairwise(offsets)]
    assert found == [list(range(start, start + length)) for start, length in ranges]
