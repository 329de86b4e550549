from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.data import Dataset
from crossbatch.data.prepare import sequences, staged_log
from crossbatch.data.prepare.sequences import mix

Rows = list[tuple[str, str, int]]
Maker = Callable[..., Dataset]
Reader = Callable[[Dataset], dict[str, list[str]]]
logs = st.lists(
    st.tuples(st.sampled_from("uvwxyz"), st.sampled_from("abcdefgh"), st.integers(0, 3)),
    min_size=12,
    max_size=60,
).filter(lambda rows: max(Counter(user for user, _, _ in rows).values()) >= 4)


@pytest.fixture(autouse=True)
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which every log crosses chunks and buckets."""
    monkeypatch.setattr(staged_log, "CHUNK_ROWS", 7)
    monkeypatch.setattr(sequences, "BUCKET_ROWS", 9)


@pytest.mark.parametrize("ties", ["stable", "item"])
@settings(max_examples=25)
@given(rows=logs)
def test_sequences_are_chronological_with_ties_by_rule(
    make_dataset: Maker, sequences_of: Reader, rows: Rows, ties: str
) -> None:
    dataset = make_dataset(rows, ties=ties, split="leave_last_out")
    expected: dict[str, list[tuple[int, str]]] = {}
    for user, item, time in rows:
        expected.setdefault(user, []).append((time, item))
    for events in expected.values():
        events.sort(key=(lambda event: event) if ties == "item" else (lambda event: event[0]))
    assert sequences_of(dataset) == {
        user: [item for _, item in events] for user, events in expected.items()
    }


@settings(max_examples=25)
@given(rows=logs)
def test_shuffled_ties_stay_inside_their_moment(
    make_dataset: Maker, sequences_of: Reader, rows: Rows
) -> None:
    dataset = make_dataset(rows, ties="shuffle", split="leave_last_out")
    found = sequences_of(dataset)
    for user in found:
        times = sorted(time for who, _, time in rows if who == user)
        for moment in set(times):
            span = slice(times.index(moment), times.index(moment) + times.count(moment))
            same = sorted(item for who, item, time in rows if (who, time) == (user, moment))
            assert sorted(found[user][span]) == same


def test_shuffle_undoes_the_order_of_ids_within_ties(
    make_dataset: Maker, sequences_of: Reader
) -> None:
    rows = [(f"u{user}", f"{item:02d}", 0) for user in range(300) for item in range(10)]
    sequences_by_user = sequences_of(make_dataset(rows, ties="shuffle"))
    rising = [a < b for items in sequences_by_user.values() for a, b in itertools.pairwise(items)]
    assert 0.46 < np.mean(rising) < 0.54  # every tie ascends in the log
    first = [items[0] for items in sequences_by_user.values()]
    assert min(first.count(f"{item:02d}") for item in range(10)) > 10


def test_the_seed_decides_the_ties(make_dataset: Maker, sequences_of: Reader) -> None:
    rows = [("u", f"{item:02d}", 0) for item in range(30)] + [("v", "00", 0), ("w", "00", 0)] * 2
    one, same, other = (
        sequences_of(make_dataset(rows, split="leave_last_out", seed=seed))["u"]
        for seed in (1, 1, 2)
    )
    assert one == same != other
    assert sorted(one) == sorted(other)


def test_mix_is_splitmix64() -> None:
    # the published first outputs of SplitMix64 seeded with 1234567
    start = 1234567 - 0x9E3779B97F4A7C15 * 0
    numbers = np.array([start, (start + 0x9E3779B97F4A7C15) % 2**64], dtype=np.uint64)
    assert mix(numbers, 0).tolist() == [6457827717110365317, 3203168211198807973]


@given(
    st.lists(
        st.tuples(st.integers(5, 9), st.integers(-3, 3), st.integers(0, 2)), min_size=0, max_size=40
    ),
    st.sampled_from([1, 86_400_000_000, 2**58]),
)
def test_packed_order_is_the_plain_one(rows: list[tuple[int, int, int]], unit: int) -> None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    users, times, ties = (
        columns[0].astype(np.int32),
        columns[1] * unit,
        columns[2].astype(np.uint64),
    )
    expected = np.lexsort((ties, times, users))
    assert sequences.sort_order(users, times, ties).tolist() == expected.tolist()


def test_times_too_wide_to_pack_are_sorted_plainly() -> None:
    rng = np.random.default_rng(0)
    users, times = rng.integers(10**6, size=500), rng.integers(2**60, size=500)
    order = sequences.sort_order(users, times, np.zeros(500, dtype=np.uint64))
    assert order.tolist() == np.lexsort((times, users)).tolist()
