from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data.prepare.hash_table import HashTable

# few low bits, so that most entries want the same slots
hashes = st.integers(0, 2**54 - 1).map(lambda number: number << 10 | 1023)


@given(st.lists(st.sets(hashes, max_size=40), max_size=6), st.lists(hashes, max_size=20))
def test_it_finds_what_a_dictionary_finds(rounds: list[set[int]], others: list[int]) -> None:
    table, known = HashTable(), {}
    for fresh in rounds:
        added = [value for value in fresh if value not in known]
        numbers = np.arange(len(known), len(known) + len(added), dtype=np.int32)
        table.add(np.array(added, dtype=np.uint64), numbers)
        known.update(zip(added, numbers.tolist(), strict=True))
    wanted = [*known, *others, *known]
    found = table.find(np.array(wanted, dtype=np.uint64))
    assert found.tolist() == [known.get(value, -1) for value in wanted]


def test_it_grows() -> None:
    rng = np.random.default_rng(0)
    values = np.unique(rng.integers(0, 2**63, size=50_000).astype(np.uint64))
    table = HashTable()
    for part in np.array_split(np.arange(len(values), dtype=np.int32), 7):
        table.add(values[part], part)
    assert (table.find(values) == np.arange(len(values))).all()
    assert (table.find(values + np.uint64(1)) == -1).mean() > 0.99
