from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.data import Dataset
from crossbatch.data.dataset import batches
from crossbatch.errors import ConfigError

Maker = Callable[..., Dataset]


@pytest.fixture(scope="module")
def dataset(make_dataset: Maker) -> Dataset:
    rng = np.random.default_rng(3)
    rows = [
        (f"u{user}", f"i{rng.integers(50)}", step)
        for user in range(100)
        for step in range(int(rng.integers(5, 40)))
    ]
    return make_dataset(rows)


def tensors(batch: Any) -> list[torch.Tensor]:
    fields = [getattr(batch, name) for name in batch.__slots__]
    later = getattr(batch, "later", None) or ()
    return [field for field in (*fields, *later) if isinstance(field, torch.Tensor)]


def equal(one: Any, other: Any) -> bool:
    return all(map(torch.equal, tensors(one), tensors(other)))


def test_a_history_is_the_items_before_its_target(dataset: Dataset) -> None:
    for batch in islice(dataset.batches(32, seed=0, history_length=6, min_history=4), 40):
        assert batch.history.shape == (32, 6)
        assert batch.history.dtype == batch.item_ids.dtype == batch.user_ids.dtype == torch.int64
        for user, history, target in zip(
            batch.user_ids, batch.history, batch.item_ids, strict=True
        ):
            items = dataset.items[dataset.offsets[user] : dataset.offsets[user + 1]].tolist()
            shown = history[history > 0].tolist()
            assert history.tolist() == shown + [0] * (6 - len(shown))  # padding stands right
            places = [
                k
                for k in range(4, len(items))
                if items[k] == target and items[max(0, k - 6) : k] == shown
            ]
            assert places


def test_what_came_later_is_the_rest_of_the_sequence(dataset: Dataset) -> None:
    plain = dataset.batches(32, seed=0)
    for batch in islice(dataset.batches(32, seed=0, later=True), 20):
        assert equal(batch, next(plain))
        ids, offsets = batch.later
        assert ids.dtype == offsets.dtype == torch.int64
        assert (offsets[0], offsets[-1], len(offsets)) == (0, len(ids), 33)
        for row, user in enumerate(batch.user_ids):
            items = dataset.items[dataset.offsets[user] : dataset.offsets[user + 1]].tolist()
            later = ids[offsets[row] : offsets[row + 1]].tolist()
            target = len(items) - len(later) - 1
            assert items[target:] == [int(batch.item_ids[row]), *later]
            shown = batch.history[row][batch.history[row] > 0].tolist()
            assert items[max(0, target - 20) : target] == shown
    assert next(plain).later is None


def test_pitfall_29_short_history_is_not_dropped(make_dataset: Maker) -> None:
    rows = [(f"u{user}", item, step) for user in range(10) for step, item in enumerate("abcde")]
    dataset = make_dataset(rows)
    batch = next(dataset.batches(8, seed=0, history_length=20, min_history=4))
    expected = dataset.item_ids(["a", "b", "c", "d"]).tolist() + [0] * 16
    assert batch.history.tolist() == [expected] * 8


def test_a_batch_has_distinct_training_users(dataset: Dataset) -> None:
    seen = set()
    for batch in islice(dataset.batches(60, seed=1), 30):
        users = batch.user_ids.tolist()
        assert len(set(users)) == 60
        seen.update(users)
    assert seen == set(range(80))  # all of train, none of valid and test


@settings(max_examples=20)
@given(start=st.integers(0, 3_000), size=st.sampled_from([1, 7, 64]))
def test_batch_number_i_depends_on_seed_and_i_alone(
    dataset: Dataset, start: int, size: int
) -> None:
    resumed = next(dataset.batches(size, seed=5, start=start))
    before = max(start - 300, 0)
    reached = next(islice(dataset.batches(size, seed=5, start=before), start - before, None))
    assert equal(resumed, reached)


@pytest.mark.parametrize("length", [1, 3, 9, 40])
def test_windows_are_slices_up_to_the_very_end(length: int) -> None:
    """Also where the log is shorter than a window, or ends before one does."""
    items = np.arange(1, 21, dtype=np.int32)
    ends = np.arange(1, 21)
    starts = np.maximum(ends - length, [0, 5] * 10)
    starts = np.minimum(starts, ends)
    found = batches._windows(items, starts, ends, length)
    expected = [items[a:b].tolist() for a, b in zip(starts, ends, strict=True)]
    assert found.tolist() == [row + [0] * (length - len(row)) for row in expected]


def test_seeds_differ_and_repeat(dataset: Dataset) -> None:
    first, again, other = (next(dataset.batches(32, seed=seed)) for seed in (1, 1, 2))
    assert equal(first, again)
    assert not equal(first, other)


def test_padding_is_never_a_target(dataset: Dataset) -> None:
    assert all((batch.item_ids > 0).all() for batch in islice(dataset.batches(64, seed=2), 50))
    assert all((batch.target_ids > 0).all() for batch in dataset.eval_batches("test"))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_eval_batches_hold_every_user_in_order_with_all_targets(
    dataset: Dataset, split: str
) -> None:
    first = {"valid": 80, "test": 90}[split]
    rows = []
    for batch in dataset.eval_batches(split, batch_size=4, history_length=5):
        assert batch.target_offsets.tolist()[0] == 0
        rows += list(
            zip(batch.user_ids.tolist(), batch.history.tolist(), batch.targets, strict=True)
        )
    assert [user for user, _, _ in rows] == list(range(first, first + 10))
    for user, history, targets in rows:
        items = dataset.items[dataset.offsets[user] : dataset.offsets[user + 1]].tolist()
        cut = len(items) * 4 // 5
        shown = items[max(cut - 5, 0) : cut]
        assert history == shown + [0] * (5 - len(shown))
        assert targets.tolist() == items[cut:]


def test_pitfall_26_repeats_stay_countable_targets(make_dataset: Maker) -> None:
    rows = [
        (f"u{user}", item, step) for user in range(20) for step, item in enumerate("aaaabbbbaa")
    ]
    batch = next(make_dataset(rows).eval_batches("test"))
    assert [len(set(targets.tolist())) for targets in batch.targets] == [1, 1]
    assert [len(targets) for targets in batch.targets] == [2, 2]  # both repeats of "a", seen before


def test_max_users_chooses_at_random_and_always_the_same(dataset: Dataset) -> None:
    def users(count: int) -> list[int]:
        batches = dataset.eval_batches("test", batch_size=2, max_users=count)
        return torch.cat([batch.user_ids for batch in batches]).tolist()

    assert dataset.num_eval_users("test") == 10
    assert users(10) == users(99) == list(range(90, 100))
    chosen = users(5)
    assert chosen == users(5) == sorted(set(chosen))
    assert set(chosen) < set(range(90, 100))
    assert chosen != [90, 91, 92, 93, 94]  # a source that gives its split may have sorted its users


def test_chosen_users_keep_their_histories_and_targets(dataset: Dataset) -> None:
    def samples(**options: int) -> dict[int, tuple[list[int], list[int]]]:
        (batch,) = dataset.eval_batches("test", **options)
        rows = zip(batch.user_ids.tolist(), batch.history.tolist(), batch.targets, strict=True)
        return {user: (history, targets.tolist()) for user, history, targets in rows}

    all_users = samples()
    assert all(all_users[user] == sample for user, sample in samples(max_users=4).items())


def test_a_plain_loop_can_use_it(dataset: Dataset) -> None:
    loader = torch.utils.data.DataLoader(_Stream(dataset), batch_size=None)
    assert equal(next(iter(loader)), next(dataset.batches(8, seed=0)))


class _Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return self.dataset.batches(8, seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"batch_size": 81, "seed": 0},
            "80 training users with more than min_history = 1 items, got 81",
        ),
        ({"batch_size": 0, "seed": 0}, "batch_size"),
        ({"batch_size": 4, "seed": 0, "history_length": 0}, "history_length"),
        ({"batch_size": 4, "seed": 0, "start": -1}, "start"),
    ],
)
def test_impossible_batches_are_refused_at_once(
    dataset: Dataset, arguments: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset.batches(**arguments)


def test_an_unknown_split_is_refused_at_once(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="valid, test"):
        dataset.eval_batches("train")
