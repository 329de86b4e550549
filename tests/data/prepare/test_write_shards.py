"""Shards hold what a dataset without shards holds, event by event."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossbatch.data import Dataset, PrepareOptions, append, open_dataset, prepare
from crossbatch.data.dataset.samples import Draw, Events
from crossbatch.data.prepare import write_shards as writing
from crossbatch.errors import ConfigError, DataError

from ..conftest import source_of
from ..event_logs import EVENT_WEIGHTS, event_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crossbatch.data import Feature

LOOSE: dict[str, Any] = {"min_item_count": 1, "min_user_count": 1}
SPLITS: dict[str, dict[str, Any]] = {
    "user": {"split": "user"},
    "time": {"split": "time", "valid_share": 0.2, "test_share": 0.2},
    "day": {"split": "day", "valid_share": 0.5},
}


@pytest.fixture(scope="module", params=SPLITS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same log as a dataset without and with shards."""
    place = tmp_path_factory.mktemp("pair")
    options = LOOSE | {"event_weights": EVENT_WEIGHTS} | SPLITS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "PIECE_ROWS", 50)  # several pieces
        for name, more in (("whole", {}), ("parts", {"shards": 4})):
            source = event_source(place / "log")
            prepare(source, place / name, PrepareOptions(**options | more))
    return open_dataset(place / "whole"), open_dataset(place / "parts")


def told(events: Events, context: Mapping[str, Feature], position: int) -> tuple[Any, ...]:
    """All that arrays say of one event."""
    assert events.weight_offsets is not None
    assert events.session_places is not None
    assert events.shown is not None
    shown, bounds = events.shown
    values = []
    for name in sorted(context):
        feature = context[name]
        if feature.offsets is None:
            values.append(tuple(np.atleast_1d(feature.values[position]).tolist()))
        else:
            a, b = feature.offsets[position : position + 2]
            values.append(tuple(feature.values[a:b].tolist()))
    return (
        int(events.items[position]),
        int(events.times[position]),
        int(events.weight_offsets[position + 1] - events.weight_offsets[position]),
        int(events.session_places[position]),
        tuple(shown[bounds[position] : bounds[position + 1]].tolist()),
        *values,
    )


def test_every_training_event_is_in_one_shard(pair: tuple[Dataset, Dataset]) -> None:
    whole, parts = pair
    users, ends = whole.training_arrays()
    expected = {
        int(user): [
            told(whole.events, whole.context_features, position)
            for position in range(whole.offsets[user], end)
        ]
        for user, end in zip(users, ends, strict=True)
    }
    assert parts.shards is not None
    found: dict[int, list[Any]] = {}
    sizes = []
    for shard in parts.shards.each():
        bounds = pairwise(shard.events.offsets.tolist())
        for user, (start, end) in zip(shard.users.tolist(), bounds, strict=True):
            assert user not in found
            span = range(start, end)
            found[user] = [told(shard.events, shard.context, position) for position in span]
        sizes.append(len(shard.users))
    assert found == expected
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == 4


def test_evaluation_is_the_same(pair: tuple[Dataset, Dataset]) -> None:
    whole, parts = pair
    for split in ("valid", "test"):
        for histories in ("all", "session"):
            both = (each.eval_batches(split, histories=histories) for each in pair)
            for one, other in zip(*both, strict=True):
                for name in ("user_ids", "history", "target_ids", "target_offsets"):
                    assert getattr(one, name).tolist() == getattr(other, name).tolist()
                assert [part.tolist() for part in one.seen] == [p.tolist() for p in other.seen]
                assert one.event_ids is not None
                assert other.event_ids is not None
                for event, again in zip(one.event_ids, other.event_ids, strict=True):
                    expected = told(whole.events, whole.context_features, int(event))
                    assert told(parts.events, parts.context_features, int(again)) == expected


def test_counts_law_and_keys_are_the_same(pair: tuple[Dataset, Dataset]) -> None:
    whole, parts = pair
    for name in ("counts", "accounting", "reading", "features", "source"):
        assert parts.manifest[name] == whole.manifest[name]
    assert parts.manifest["options"] == whole.manifest["options"] | {"shards": 4}
    assert np.array_equal(parts.item_counts, whole.item_counts)
    assert np.array_equal(parts.sampler_law, whole.sampler_law)
    for draw in (Draw(), Draw(1, "interaction"), Draw(3), Draw(2, "interaction", 4.0)):
        expected, found = (each.sampling_law(*draw) for each in pair)
        # sums of whole numbers are exact; by user, a sum in another order rounds otherwise
        np.testing.assert_allclose(found, expected, rtol=0 if draw.sample_by != "user" else 1e-12)
        assert parts.num_samples(draw.min_history, draw.newest_days) == whole.num_samples(
            draw.min_history, draw.newest_days
        )
    assert parts.last_training_time == whole.last_training_time
    assert parts.user_keys(range(9)) == whole.user_keys(range(9))
    for one, other in zip(parts.train_sequences(), whole.train_sequences(), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(parts.train_users, whole.train_users)
    assert parts.num_interactions == len(whole.items)
    assert repr(parts) == repr(whole).replace("/whole", "/parts")
    parts.verify()


rows = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz"), st.integers(0, 40)),
    min_size=12,
    max_size=60,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, st.integers(1, 5), st.sampled_from(["user", "time"]), st.integers(0, 3))
def test_the_pairs_of_any_log(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, int]],
    number: int,
    split: str,
    seed: int,
) -> None:
    """(user, history, target), counted one by one from the arrays."""
    place = tmp_path_factory.mktemp("any")
    options = LOOSE | {"split": split, "seed": seed}
    try:
        prepare(source_of(rows), place / "whole", PrepareOptions(**options))
    except DataError:  # too short a log for this split
        return
    whole = open_dataset(place / "whole")
    wanted = PrepareOptions(**options, shards=number)
    if number > len(whole.train_users):
        with pytest.raises(ConfigError, match="shards must not exceed the"):
            prepare(source_of(rows), place / "parts", wanted)
        assert not (place / "parts").exists()
        return
    prepare(source_of(rows), place / "parts", wanted)
    parts = open_dataset(place / "parts")
    users, ends = whole.training_arrays()
    expected = Counter(
        (user, tuple(whole.items[start:target]), whole.items[target])
        for user, start, end in zip(users, whole.offsets[users], ends, strict=True)
        for target in range(start + 1, end)
    )
    assert parts.shards is not None
    assert len(parts.shards) == number
    found: Counter[Any] = Counter()
    for shard in parts.shards.each():
        items, offsets = shard.events.items, shard.events.offsets
        for user, (start, end) in zip(shard.users, pairwise(offsets), strict=True):
            found.update(
                (user, tuple(items[start:target]), items[target])
                for target in range(start + 1, end)
            )
    assert found == expected
    assert parts.num_samples() == sum(expected.values())
    shares = Counter()
    for (_, _, item), count in expected.items():
        shares[int(item)] += count / sum(expected.values())
    law = parts.sampling_law(sample_by="interaction")
    np.testing.assert_allclose(law, [shares[item] for item in range(parts.num_items + 1)])
    parts.verify()


def test_the_same_log_gives_the_same_bytes_and_a_seed_other_shards(tmp_path: Path) -> None:
    rows = [(f"u{n % 30}", f"i{n % 7}", n) for n in range(300)]
    options = [PrepareOptions(**LOOSE, shards=3, seed=seed) for seed in (1, 1, 2)]
    sums = [
        prepare(source_of(rows), tmp_path / str(number), each)["checksum"]
        for number, each in enumerate(options)
    ]
    assert sums[0] == sums[1] != sums[2]


def test_users_of_a_given_split_are_shuffled(tmp_path: Path) -> None:
    """Files that bring their own split list users in an order that may mean something."""
    import polars as pl

    from crossbatch.data import Source

    rows = [(f"u{user:03d}", f"i{step % 5}", step) for user in range(90) for step in range(4)]

    def batches(_tally: object) -> Any:
        frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
        split = frame["user"].str.slice(1).cast(pl.Int8) // 30
        yield frame.with_columns(split.alias("split"))

    source = Source(format="test", files=(), batches=batches, time_unit="s")
    prepare(source, tmp_path / "parts", PrepareOptions(**LOOSE, shards=3))
    dataset = open_dataset(tmp_path / "parts")
    assert dataset.shards is not None
    keys = [dataset.user_keys(shard.users) for shard in dataset.shards.each()]
    assert sorted(key for part in keys for key in part) == [f"u{user:03d}" for user in range(30)]
    assert all(max(part) > min(other) for part, other in pairwise(keys))  # not first come first
    valid = dataset.user_keys(dataset.part("valid")[0])
    assert sorted(valid) == [f"u{user:03d}" for user in range(30, 60)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shards": 0}, "shards must be 1 to 4,096, got 0"),
        ({"shards": 5_000}, "shards must be 1 to 4,096, got 5000"),
        ({"shards": 2, "split": "leave_last_out"}, "choose --split user, day or time"),
        ({"shards": 2, "split": "day", "growing": True}, "leave out --growing or --shards"),
    ],
)
def test_what_cannot_be_in_shards(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrepareOptions(**given)


def test_days_are_not_added_to_shards(tmp_path: Path) -> None:
    rows = [(f"u{n % 9}", f"i{n % 7}", 20_000 * n) for n in range(90)]
    prepare(source_of(rows), tmp_path / "parts", PrepareOptions(**LOOSE, split="day", shards=2))
    with pytest.raises(DataError, match="is in shards, so days cannot be added: prepare it with"):
        append(source_of(rows), tmp_path / "parts", tmp_path / "new")
