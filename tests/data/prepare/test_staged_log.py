from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data.prepare import staged_log
from crossbatch.data.prepare.staged_log import KeyCodes, StagedLog

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


@given(
    st.lists(st.lists(st.text(alphabet="ab€\x00", min_size=1, max_size=3), min_size=1), max_size=5)
)
def test_codes_count_keys_in_order_of_first_appearance(batches: list[list[str]]) -> None:
    codes, seen = KeyCodes(), {}
    for batch in batches:
        expected = [seen.setdefault(key, len(seen)) for key in batch]
        assert codes.encode(pl.Series(batch, dtype=pl.String)).tolist() == expected
    assert codes.keys.to_list() == list(seen)


def test_staged_log_returns_in_chunks_what_was_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_log, "CHUNK_ROWS", 3)
    log = StagedLog(tmp_path)
    log.append(pl.Series(["u", "v"]), pl.Series(["a", "a"]), np.array([5, 6]))
    log.append(pl.Series(["v", "w"]), pl.Series(["b", "a"]), np.array([7, 8]))
    log.close()
    chunks = list(log.chunks())
    assert [chunk.first_row for chunk in chunks] == [0, 3]
    assert np.concatenate([chunk.users for chunk in chunks]).tolist() == [0, 1, 1, 2]
    assert np.concatenate([chunk.items for chunk in chunks]).tolist() == [0, 0, 1, 0]
    assert np.concatenate([chunk.times for chunk in chunks]).tolist() == [5, 6, 7, 8]
