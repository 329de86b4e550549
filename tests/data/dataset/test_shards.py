"""Which shard a batch comes from, and what batches of shards hold."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data import Dataset, PrepareOptions, Source, describe, open_dataset, prepare
from crossbatch.data.dataset.describe import plot
from crossbatch.data.dataset.shards import EVENT_BITS, visits
from crossbatch.errors import ConfigError, DataError
from crossbatch.training.build import _feature_tables

from ..conftest import source_of
from ..event_logs import EVENT_WEIGHTS, event_source

if TYPE_CHECKING:
    from pathlib import Path

LOOSE: dict[str, Any] = {"min_item_count": 1, "min_user_count": 1}


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any),
    st.integers(1, 60),
    st.integers(0, 5),
)
def test_the_batches_of_a_pass(totals: list[int], per_pass: int, seed: int) -> None:
    """Every batch comes from one shard, and a shard's number of them is its share, rounded."""
    for number in range(3):
        first = number * per_pass
        plan = visits(totals, per_pass, seed=seed, start=first)
        taken = []
        for visit in plan:
            taken.append(visit)
            if visit.last == first + per_pass:
                break
        assert [visit.first for visit in taken] == [first, *(visit.last for visit in taken[:-1])]
        for shard, total in enumerate(totals):
            own = [visit.last - visit.first for visit in taken if visit.shard == shard]
            assert len(own) <= 1
            exact = per_pass * total / sum(totals)
            assert abs(sum(own) - exact) < 1
            assert bool(own) >= (exact >= 1)  # none is passed over that has a batch or more
    for start in range(0, 3 * per_pass, 7):
        resumed = next(visits(totals, per_pass, seed=seed, start=start))
        whole = (each for each in visits(totals, per_pass, seed=seed) if each.last > start)
        expected = next(whole)
        assert resumed == expected._replace(first=start)


def test_passes_have_orders_of_their_own() -> None:
    plan = list(islice(visits([1] * 20, 20, seed=3), 60))
    orders = [[visit.shard for visit in plan[first : first + 20]] for first in (0, 20, 40)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != [visit.shard for visit in islice(visits([1] * 20, 20, seed=4), 20)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    place = tmp_path_factory.mktemp("both")
    options: dict[str, Any] = LOOSE | {"event_weights": EVENT_WEIGHTS}
    for name, more in (("whole", {}), ("parts", {"shards": 3})):
        prepare(event_source(place / "log"), place / name, PrepareOptions(**options | more))
    return open_dataset(place / "whole"), open_dataset(place / "parts")


def shard_of_users(dataset: Dataset) -> dict[int, int]:
    assert dataset.shards is not None
    found = (dict.fromkeys(shard.users.tolist(), shard.number) for shard in dataset.shards.each())
    return {user: number for part in found for user, number in part.items()}


@pytest.mark.parametrize("sample_by", ["user", "interaction"])
def test_batches_of_whole_passes(both: tuple[Dataset, Dataset], sample_by: str) -> None:
    """Shares by hand: of users, or of the weights of their targets."""
    whole, parts = both
    where = shard_of_users(parts)
    samples = whole.samples(sample_by=sample_by)
    shares: Counter[int] = Counter()
    for user, weight in zip(samples.users.tolist(), samples.totals.tolist(), strict=True):
        shares[where[user]] += 1 if sample_by == "user" else weight
    per_pass = -(-whole.num_samples() // 8)
    drawn = []
    for batch in islice(parts.batches(8, seed=7, sample_by=sample_by), 2 * per_pass):
        (shard,) = {where[user] for user in batch.user_ids.tolist()}
        drawn.append(shard)
        assert batch.event_ids is not None
        assert {event >> EVENT_BITS for event in batch.event_ids.tolist()} == {shard + 1}
    for first in (0, per_pass):
        counted = Counter(drawn[first : first + per_pass])
        assert len([key for key, _ in groupby(drawn[first : first + per_pass])]) == 3
        for shard, share in shares.items():
            assert abs(counted[shard] - per_pass * share / sum(shares.values())) < 1


def test_rows_are_samples_of_the_whole_dataset(both: tuple[Dataset, Dataset]) -> None:
    """History, target, what came later, what was shown and the context of each row."""
    whole, parts = both
    tables = [_feature_tables("", ("*",), dict(each.context_features)) for each in both]
    assert whole.shown is not None
    _, ends = whole.training_arrays()
    end_of = dict(zip(whole.train_users.tolist(), ends.tolist(), strict=True))
    assert parts.shards is not None
    shards = {shard.number: shard for shard in parts.shards.each()}
    for batch in islice(parts.batches(8, seed=1, later=True, history_length=4), 60):
        events = []
        assert batch.event_ids is not None
        assert batch.later is not None
        assert batch.shown is not None
        for row, (user, event) in enumerate(
            zip(batch.user_ids.tolist(), batch.event_ids.tolist(), strict=True)
        ):
            shard = shards[(event >> EVENT_BITS) - 1]
            place = shard.users.tolist().index(user)
            within = event - shard.first_event - int(shard.events.offsets[place])
            start = int(whole.offsets[user])
            position = start + within  # of the same event in the dataset without shards
            events.append(position)
            history = whole.items[max(start, position - 4) : position].tolist()
            assert batch.history[row].tolist() == history + [0] * (4 - len(history))
            assert int(batch.item_ids[row]) == whole.items[position]
            ids, offsets = batch.later
            later = whole.items[position + 1 : end_of[user]].tolist()
            assert ids[offsets[row] : offsets[row + 1]].tolist() == later
            ids, offsets = batch.shown
            bounds = whole.shown[1][position : position + 2]
            assert (
                ids[offsets[row] : offsets[row + 1]].tolist()
                == whole.shown[0][slice(*bounds)].tolist()
            )
        rows = torch.tensor(events)
        for name, table in tables[0].items():
            other = tables[1][name]
            if table.offsets is None:
                assert torch.equal(other.rows(batch.event_ids), table.rows(rows))
            else:
                for one, two in zip(other.bags(batch.event_ids), table.bags(rows), strict=True):
                    assert torch.equal(one, two)


def test_a_run_resumes_within_a_shard(both: tuple[Dataset, Dataset]) -> None:
    _, parts = both
    options: dict[str, Any] = {"seed": 5, "sample_by": "interaction", "later": True}
    stream = list(islice(parts.batches(8, **options), 150))
    for start in (0, 1, 33, 64, 71, 100, 149):
        again = open_dataset(parts.path)
        batch = next(again.batches(8, start=start, **options))
        expected = stream[start]
        for name in ("user_ids", "history", "item_ids", "event_ids"):
            assert torch.equal(getattr(batch, name), getattr(expected, name))


def test_options_that_read_all_shards(both: tuple[Dataset, Dataset]) -> None:
    whole, parts = both
    for options in ({"min_history": 3}, {"newest_days": 3.0}, {"histories": "session"}):
        batch = next(parts.batches(4, seed=0, **options))
        assert len(batch.item_ids) == 4
    for dataset in both:
        with pytest.raises(ConfigError, match=r"min_history = 900 items, but at most \d+"):
            next(dataset.batches(4, seed=0, min_history=900))
        with pytest.raises(ConfigError, match="no item of the last newest_days = 1e-09 days"):
            dataset.sampling_law(20, newest_days=1e-9)
    assert describe(parts)["popularity"] == describe(whole)["popularity"]


def test_description_is_that_of_the_whole_dataset(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = rng.integers(4e7, 4.001e7, 400).tolist()
    rows = [(f"u{n % 40}", f"i{rng.integers(11)}", time // 60 * 60) for n, time in enumerate(times)]
    for name, more in (("whole", {}), ("parts", {"shards": 3})):
        prepare(source_of(rows), tmp_path / name, PrepareOptions(**LOOSE, **more))
    whole, parts = (describe(open_dataset(tmp_path / name)) for name in ("whole", "parts"))
    assert parts == whole
    assert whole["order"]["ties"] > 0
    plot(open_dataset(tmp_path / "parts"), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1_000


def test_a_batch_larger_than_a_shard(both: tuple[Dataset, Dataset]) -> None:
    _, parts = both
    users = min(part["users"] for part in parts.manifest["shards"]["parts"])
    with pytest.raises(ConfigError, match=rf"must not exceed the {users} training users of a sh"):
        parts.batches(users + 1, seed=0)
    assert len(next(parts.batches(users + 1, seed=0, sample_by="interaction")).item_ids)
    with pytest.raises(DataError, match="in shards, which are read one by one: prepare it without"):
        parts.samples()


def test_a_shard_without_targets_is_passed_over(tmp_path: Path) -> None:
    """Half of the users have events of weight 0 alone: histories without a target."""
    rows = [(f"u{n % 8}", f"i{n % 5}", n, float(n % 8 < 4)) for n in range(80)]

    def batches(_tally: object) -> Any:
        yield pl.DataFrame(rows, schema=["user", "item", "time", "weight"], orient="row")

    source = Source("test", (), batches, time_unit="s", event_columns=("weight",))
    options = PrepareOptions(**LOOSE, split="time", valid_share=0.1, test_share=0.1, shards=8)
    prepare(source, tmp_path / "parts", options)
    dataset = open_dataset(tmp_path / "parts")
    dataset.verify()
    empty = [part for part in dataset.manifest["shards"]["parts"] if not part["samples"]]
    assert len(empty) == 4
    for sample_by in ("user", "interaction"):
        for history in (1, 2):
            drawn = islice(dataset.batches(1, seed=0, sample_by=sample_by, min_history=history), 60)
            users = {int(batch.user_ids) for batch in drawn}
            assert sorted(dataset.user_keys(users)) == ["u0", "u1", "u2", "u3"]


@pytest.mark.parametrize("damage", ["removed", "truncated", "changed"])
def test_a_damaged_shard_is_found(tmp_path: Path, damage: str) -> None:
    rows = [(f"u{n % 30}", f"i{n % 7}", n) for n in range(300)]
    prepare(source_of(rows), tmp_path / "parts", PrepareOptions(**LOOSE, shards=3))
    path = tmp_path / "parts/shards/0001/items.npy"
    content = path.read_bytes()
    path.unlink()
    if damage != "removed":
        cut = content[:-4] if damage == "truncated" else content[:-4] + b"\1\0\0\0"
        path.write_bytes(cut)
    dataset = open_dataset(tmp_path / "parts")
    dataset.verify(shards=False)  # evaluation needs none of it
    message = r"shards/0001/items.npy is missing or was changed: prepare the dataset again"
    with pytest.raises(DataError, match=message):
        dataset.verify()
    with pytest.raises(DataError, match=message):
        list(islice(dataset.batches(4, seed=0), 200))


def test_a_shard_that_contradicts_its_dataset(tmp_path: Path) -> None:
    """Checksums alone do not show what a faulty or hostile program wrote."""
    from crossbatch.data.dataset.manifest import write_manifest

    rows = [(f"u{n % 30}", f"i{n % 7}", n) for n in range(300)]
    place = tmp_path / "parts"
    prepare(source_of(rows), place, PrepareOptions(**LOOSE, shards=3))
    manifest = open_dataset(place).manifest
    kept = {key: value for key, value in manifest.items() if key not in ("files", "seal")}
    items = np.load(place / "shards/0002/items.npy")
    items[0] = 1_000
    np.save(place / "shards/0002/items.npy", items)
    write_manifest(place, kept)
    with pytest.raises(DataError, match="contradicts itself"):
        list(islice(open_dataset(place).batches(4, seed=0), 200))
    for broken in ({}, {"last_training_time": 1, "parts": [{"users": "many"}]}):
        write_manifest(place, kept | {"shards": broken})
        with pytest.raises(DataError, match="broken manifest"):
            open_dataset(place)
    empty = {"users": 0, "interactions": 0, "samples": 0, "weight": 0}
    write_manifest(place, kept | {"shards": {"last_training_time": 1, "parts": [empty]}})
    with pytest.raises(DataError, match="has shards without samples"):
        open_dataset(place)
