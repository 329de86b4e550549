from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data.prepare.numbering import Frequent, keep_frequent
from crossbatch.data.prepare.staged_log import StagedLog

Pairs = list[tuple[str, str]]
pairs = st.lists(
    st.tuples(st.sampled_from("uvwxyz"), st.sampled_from("abcde")), min_size=1, max_size=60
)


def run(log: Pairs, least: int, *, core: bool) -> tuple[Frequent, set[str], set[str]]:
    with tempfile.TemporaryDirectory() as folder:
        staged = StagedLog(Path(folder))
        users, items = zip(*log, strict=True)
        staged.append(pl.Series(users), pl.Series(items), np.zeros(len(log), dtype=np.int64))
        staged.close()
        kept = keep_frequent(staged, least, least, core=core)
        names = staged.user_codes.keys, staged.item_codes.keys
    return (
        kept,
        set(names[0].filter(pl.Series(kept.users)).to_list()),
        set(names[1].filter(pl.Series(kept.items)).to_list()),
    )


@given(pairs, st.integers(1, 4))
def test_one_pass_counts_items_over_everything_then_users_over_kept_items(
    log: Pairs, least: int
) -> None:
    kept, users, items = run(log, least, core=False)
    item_counts = Counter(item for _, item in log)
    good_items = {item for item, count in item_counts.items() if count >= least}
    user_counts = Counter(user for user, item in log if item in good_items)
    assert items == good_items
    assert users == {user for user, count in user_counts.items() if count >= least}
    left = sum(user in users and item in items for user, item in log)
    assert left + kept.dropped_by_item + kept.dropped_by_user == len(log)


@given(pairs, st.integers(1, 4))
def test_core_is_the_largest_set_in_which_all_counts_suffice(log: Pairs, least: int) -> None:
    kept, users, items = run(log, least, core=True)
    rest = log
    while True:
        item_counts, user_counts = Counter(i for _, i in rest), Counter(u for u, _ in rest)
        fewer = [(u, i) for u, i in rest if item_counts[i] >= least and user_counts[u] >= least]
        if fewer == rest:
            break
        rest = fewer
    left = [(u, i) for u, i in log if u in users and i in items]
    assert left == rest
    assert len(left) + kept.dropped_by_item + kept.dropped_by_user == len(log)


def test_items_are_not_counted_again_after_users_fall() -> None:
    log = [("u", "a"), ("u", "b"), ("v", "a"), ("v", "b"), ("w", "b"), ("x", "c"), ("y", "c")]
    _, users, items = run(log, 2, core=False)
    assert (users, items) == ({"u", "v"}, {"a", "b", "c"})  # c stays though x and y fell
    _, users, items = run(log, 2, core=True)
    assert (users, items) == ({"u", "v"}, {"a", "b"})
