from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data import Dataset
from crossbatch.data.dataset import samples
from crossbatch.data.prepare import splits
from crossbatch.data.prepare.options import PrepareOptions
from crossbatch.data.prepare.splits import DAY, SPLITS, Sequences, Split, user_bounds
from crossbatch.errors import ConfigError

Maker = Callable[..., Dataset]
lengths_strategy = st.lists(st.integers(1, 12), min_size=3, max_size=30)


def sequences(lengths: list[int], times: list[int] | None = None) -> Sequences:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    stamps = np.array(times) if times else np.concatenate([np.arange(n) for n in lengths])
    return Sequences(offsets, stamps, user_bounds(len(lengths), (0.1, 0.1)))


def options(valid_share: float, test_share: float, test_day: int = 0) -> PrepareOptions:
    """Options of a split; the day of test is numbered from 1970, 0 for the last one."""
    day = (date(1970, 1, 1) + timedelta(days=test_day)).isoformat() if test_day else None
    shares = {"valid_share": valid_share, "test_share": test_share}
    return PrepareOptions(**shares, split="day", test_day=day, seed=0)


def rows(split: Split, name: str) -> list[tuple[int, int, int]]:
    part = getattr(split, name)
    return list(zip(part.users.tolist(), part.cuts.tolist(), part.ends.tolist(), strict=True))


def test_user_split_by_hand() -> None:
    split = SPLITS["user"](sequences([5, 5, 5, 5, 5, 5, 5, 5, 7, 11]), options(0.1, 0.1))
    assert split.train_users.tolist() == list(range(8))
    assert split.train_ends.tolist() == [5, 10, 15, 20, 25, 30, 35, 40]
    assert rows(split, "valid") == [(8, 45, 47)]  # ⌊0.8·7⌋ = 5 items of history, 2 targets
    assert rows(split, "test") == [(9, 55, 58)]  # ⌊0.8·11⌋ = 8, 3 targets


@pytest.mark.parametrize(
    ("users", "expected"), [(603_668, (482_934, 543_301)), (10, (8, 9)), (943, (754, 848))]
)
def test_user_bounds_are_comirecs(users: int, expected: tuple[int, int]) -> None:
    assert user_bounds(users, (0.1, 0.1)) == expected


def test_leave_last_out_by_hand() -> None:
    split = SPLITS["leave_last_out"](sequences([5, 2, 1, 3]), options(0.1, 0.1))
    assert split.train_ends.tolist() == [3, 5, 7, 9]
    assert rows(split, "valid") == [(0, 3, 4), (3, 9, 10)]
    assert rows(split, "test") == [(0, 4, 5), (1, 6, 7), (3, 10, 11)]


def test_time_split_by_hand() -> None:
    #          user 0: five before, one in each window; user 1: all in the first window
    times = [0, 1, 2, 3, 4, 8, 9, 8, 8, 0]
    split = SPLITS["time"](sequences([7, 2, 1], times), options(0.3, 0.1))
    assert split.train_ends.tolist() == [5, 7, 10]
    assert rows(split, "valid") == [(0, 5, 6)]  # user 1 has no history before the window
    assert rows(split, "test") == [(0, 6, 7)]


def test_time_split_keeps_one_moment_together() -> None:
    split = SPLITS["time"](sequences([4, 4], [0, 0, 0, 5, 0, 0, 5, 5]), options(0.2, 0.1))
    assert split.valid.users.size == 0  # three share the last moment: more than any window may take
    assert split.train_ends.tolist() == [4, 8]


@pytest.mark.parametrize("name", list(SPLITS))
@given(lengths=lengths_strategy)
def test_no_split_leaks(name: str, lengths: list[int]) -> None:
    log = sequences(lengths)
    split = SPLITS[name](log, options(0.2, 0.2))
    trained = {
        position
        for user, end in zip(split.train_users, split.train_ends, strict=True)
        for position in range(log.offsets[user], end)
    }
    targets = {}
    for part in ("valid", "test"):
        targets[part] = {p for _, cut, end in rows(split, part) for p in range(cut, end)}
        for user, cut, end in rows(split, part):
            assert log.offsets[user] < cut < end <= log.offsets[user + 1]  # history, then targets
    assert not trained & (targets["valid"] | targets["test"])
    assert not targets["valid"] & targets["test"]


@given(times=st.lists(st.integers(0, 20), min_size=20, max_size=60))
def test_nothing_trained_on_is_later_than_a_target_in_a_time_split(times: list[int]) -> None:
    half = len(times) // 2
    ordered = sorted(times[:half]) + sorted(times[half:])
    log = sequences([half, len(times) - half], ordered)
    split = SPLITS["time"](log, options(0.2, 0.2))
    stamps = np.array(ordered)
    trained = [
        stamps[log.offsets[u] : end]
        for u, end in zip(split.train_users, split.train_ends, strict=True)
    ]
    latest = max((part.max() for part in trained if len(part)), default=-1)
    for name in ("valid", "test"):
        for _, cut, end in rows(split, name):
            assert stamps[cut:end].min() > latest


@given(
    times=st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 9), min_size=2, max_size=60),
    shares=st.tuples(st.floats(0, 0.45), st.floats(0, 0.45)),
    rows=st.sampled_from([3, 1000]),
    bins=st.sampled_from([2, 5, 1 << 16]),
)
def test_a_time_split_takes_as_much_as_its_share_allows(
    times: list[int], shares: tuple[float, float], rows: int, bins: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (splits, samples):
            patch.setattr(module, "CHUNK_ROWS", rows)
        patch.setattr(splits, "BINS", bins)
        split = SPLITS["time"](sequences([len(times)], sorted(times)), options(*shares))
    stamps = sorted(times)
    # the earliest later moment that leaves no more than the share, found by trying all of them
    most = round((shares[0] + shares[1]) * len(stamps))
    cuts = [n for n in range(1, len(stamps) + 1) if n == len(stamps) or stamps[n - 1] < stamps[n]]
    assert split.train_ends.tolist() == [min(n for n in cuts if len(stamps) - n <= most)]


@pytest.mark.parametrize("shares", [(-0.1, 0.1), (0.5, 0.5)])
def test_impossible_shares_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="shares"):
        user_bounds(10, shares)


def test_short_users_still_evaluate_in_leave_last_out(make_dataset: Maker) -> None:
    log = [("long", item, n) for n, item in enumerate("abcdefgh")] + [
        ("short", "a", 0),
        ("short", "b", 1),
    ]
    dataset = make_dataset(log, split="leave_last_out")
    assert dataset.manifest["counts"]["train_users_too_short"] == 1
    assert dataset.num_eval_users("test") == 2
    assert dataset.eligible_samples == 5  # of a..f: positions 1 to 5
    assert dataset.num_samples(4) == 2  # positions 4 and 5


def test_day_split_by_hand() -> None:
    #         user 0                  user 1     user 2   user 3
    days = [0.1, 1.5, 2.2, 2.9, 3.1, 1.0, 2.0, 3.5, 2.5, 2.6, 0.5, 3.9, 4.0]
    log = sequences([5, 3, 2, 3], [round(DAY * day) for day in days])
    everyone = SPLITS["day"](log, options(0.999999, 0.0, 3))
    # all users of day 2 who have a history are held out of it; user 2 has none and is trained on
    assert rows(everyone, "valid") == [(0, 2, 4), (1, 6, 7)]
    assert everyone.train_ends.tolist() == [2, 6, 10, 11]
    assert rows(everyone, "test") == [(0, 4, 5), (1, 7, 8), (3, 11, 12)]  # day 3; 4.0 is after it
    nobody = SPLITS["day"](log, options(0.0, 0.0, 3))
    assert nobody.train_ends.tolist() == [4, 7, 10, 11]
    assert rows(nobody, "valid") == []
    last = SPLITS["day"](log, options(0.0, 0.0))
    assert rows(last, "test") == [(3, 12, 13)]  # the last day of the log
    later = SPLITS["day"](log, options(0.0, 0.0, 9))
    assert rows(later, "test") == []
    assert later.train_ends.tolist() == [5, 8, 10, 13]


def test_a_share_of_the_users_of_the_last_day_validates() -> None:
    users = 20_000
    times = [0, DAY] * users
    chosen = []
    for shift in (0, DAY):  # another day, other users
        log = sequences([2] * users, [time + shift for time in times])
        split = SPLITS["day"](log, options(0.1, 0.0, 2 + shift // DAY))
        assert 0.09 < len(split.valid.users) / users < 0.11
        chosen.append(set(split.valid.users.tolist()))
    assert len(chosen[0] & chosen[1]) < 0.2 * len(chosen[0])
