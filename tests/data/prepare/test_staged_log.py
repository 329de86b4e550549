from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data.prepare import staged_log
from crossbatch.data.prepare.staged_log import HashTable, KeyCodes, StagedLog

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


def test_keys_that_share_a_hash_keep_their_own_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = staged_log.hashed

    def poor(keys: pl.Series, seed: int) -> np.ndarray:
        return real(keys, seed) if seed > 1 else keys.str.len_chars().cast(pl.UInt64).to_numpy()

    monkeypatch.setattr(staged_log, "hashed", poor)
    codes = KeyCodes()
    first = codes.encode(pl.Series(["aa", "b", "aa"]))
    assert first.tolist() == [0, 1, 0]
    second = codes.encode(pl.Series(["cc", "b", "aa", "cc"]))
    assert [codes.keys[int(code)] for code in second] == ["cc", "b", "aa", "cc"]
    assert len(codes) == 3


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


# few low bits, so that most entries want the same slots
hashes = st.integers(0, 2**54 - 1).map(lambda number: number << 10 | 1023)


@given(st.lists(st.sets(hashes, max_size=40), max_size=6), st.lists(hashes, max_size=20))
def test_a_hash_table_finds_what_a_dictionary_finds(
    rounds: list[set[int]], others: list[int]
) -> None:
    table, known = HashTable(), {}
    for fresh in rounds:
        added = [value for value in fresh if value not in known]
        numbers = np.arange(len(known), len(known) + len(added), dtype=np.int32)
        table.add(np.array(added, dtype=np.uint64), numbers)
        known.update(zip(added, numbers.tolist(), strict=True))
    wanted = [*known, *others, *known]
    found = table.find(np.array(wanted, dtype=np.uint64))
    assert found.tolist() == [known.get(value, -1) for value in wanted]


def test_a_hash_table_grows() -> None:
    rng = np.random.default_rng(0)
    values = np.unique(rng.integers(0, 2**63, size=50_000).astype(np.uint64))
    table = HashTable()
    for part in np.array_split(np.arange(len(values), dtype=np.int32), 7):
        table.add(values[part], part)
    assert (table.find(values) == np.arange(len(values))).all()
    assert (table.find(values + np.uint64(1)) == -1).mean() > 0.99
