"""Training sequences in shards, which are read one after the other, the next one in the background.

A pass over the data visits every shard once, in an order that the seed decides anew for each pass.
Of the batches of a pass, a shard gives a share in proportion to its users (drawn by user) or to
the weight of its targets (by interaction), rounded to whole batches: an item is then a positive as
often as in a dataset without shards. Batch number i depends on the seed and i alone here too.

Files of a shard are checked before they are read. Of a dataset in an object store, the cache has at
most two shards for a run: the one that is read and the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice, pairwise
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossbatch.cache import NoRoomError, release, remove_unused
from crossbatch.data.dataset.arrays import map_array, offsets_of
from crossbatch.data.dataset.features import Feature, read_features
from crossbatch.data.dataset.manifest import check_listed
from crossbatch.data.dataset.samples import Draw, Events, Samples, Training, no_samples, read_events
from crossbatch.errors import ConfigError, DataError
from crossbatch.remote import fetch_part

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.data.dataset.batches import Batch

FOLDER = "shards"
MOST_SHARDS = 4_096
EVENT_BITS = 40  # of an event's position in its shard; the bits before tell the shard


def shard_name(number: int) -> str:
    """Return the folder of a shard within the dataset's."""
    return f"{FOLDER}/{number:04d}"


class Visit(NamedTuple):
    """Batches that are drawn from a shard: those of the numbers `first` to `last` − 1."""

    shard: int
    first: int
    last: int


def visits(totals: Sequence[int], per_pass: int, *, seed: int, start: int = 0) -> Iterator[Visit]:
    """Yield which shards batches come from, from batch `start` on, without end.

    The shares of the shards are in proportion to `totals`; a pass over all has `per_pass` batches,
    and the seed decides their order.
    """
    number, whole = start // per_pass, sum(totals)
    while True:
        # the last word of the counter is 0 in what batches are drawn from
        rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, number, 1]))
        order = rng.permutation(len(totals)).tolist()
        before = accumulate((totals[shard] for shard in order), initial=0)
        begin = number * per_pass
        bounds = [begin + (2 * per_pass * total + whole) // (2 * whole) for total in before]
        for shard, (first, last) in zip(order, pairwise(bounds), strict=True):
            if max(first, start) < last:
                yield Visit(shard, max(first, start), last)
        number += 1


@dataclass(frozen=True)
class Shard:
    """One shard, memory-mapped: the training parts of some users."""

    number: int
    folder: Path
    schema: Path  # folder with the schema of the context
    events: Events
    users: np.ndarray  # [U] int64, ids of the users, ascending

    @property
    def training(self) -> Training:
        """All of it."""
        offsets = self.events.offsets
        return Training(self.events, self.users, np.arange(len(self.users)), offsets[1:])

    @property
    def first_event(self) -> int:
        """Id of its first event, beyond those of the shards before and of evaluation."""
        return (self.number + 1) << EVENT_BITS

    @cached_property
    def context(self) -> Mapping[str, Feature]:
        """Context of the interactions, a row for each."""
        return read_features(self.schema, self.folder / "features/context")


class Totals(NamedTuple):
    """What one pass over all shards tells of their samples."""

    shares: list[int]  # [number of shards] what batches are drawn in proportion to
    users: list[int]  # [number of shards] users who have samples
    samples: int  # pairs of a user and a target, of all shards
    law: np.ndarray  # [num_items + 1] float64, probability of each item to be a target


Make = Callable[[Shard, "Samples", int], Iterator["Batch"]]
"""`make(shard, samples, start)`: the batches of a shard from the number `start` on."""


class Shards:
    """The shards of a dataset.

    Args:
        files: Where they are.
        entry: What the manifest says of them.
        laws: Sampling laws that are stored; `[num_items + 1]` each.
        optional: Names of the files that a dataset has; a shard has the same arrays.

    Raises:
        DataError: If the manifest is broken.
    """

    def __init__(
        self,
        files: ShardFiles,
        entry: Mapping[str, Any],
        laws: Mapping[Draw, np.ndarray],
        optional: Container[str],
    ) -> None:
        self._files, self._optional, self._laws = files, optional, laws
        self._open: dict[int, Shard] = {}
        try:
            self.last_time = int(entry["last_training_time"])
            self.entries = [
                {name: int(part[name]) for name in ("users", "interactions", "samples", "weight")}
                for part in entry["parts"]
            ]
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"{files.folder} has a broken manifest ({error!r}): prepare it again"
            ) from None
        self._totals: dict[Draw, Totals] = {}
        for draw, law in laws.items():
            shares = [part["users" if draw.sample_by == "user" else "weight"] for part in self]
            users = [part["users"] for part in self]
            samples = sum(part["samples"] for part in self)
            if not shares or min(*shares, *users) < 0 or sum(shares) < 1 or samples < 1:
                raise DataError(f"{files.folder} has shards without samples: prepare it again")
            self._totals[draw] = Totals(shares, users, samples, law)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[dict[str, int]]:
        return iter(self.entries)

    def opened(self, number: int) -> Shard:
        """Return a shard, whose files are fetched and checked first."""
        if number not in self._open:
            self._files.ready(number)
            self._open[number] = self.mapped(number)
        return self._open[number]

    def mapped(self, number: int) -> Shard:
        """Return a shard whose files are there."""
        folder = self._files.folder / shard_name(number)
        schema = self._files.folder / "features/context"
        events = read_events(folder, self._optional)
        return Shard(number, folder, schema, events, map_array(folder / "users.npy"))

    def visited(self, number: int, following: int) -> Shard:
        """Return a shard, and make the following one ready in the background; others may go."""
        self._open = {kept: shard for kept, shard in self._open.items() if kept == number}
        self._files.keep(number, following)
        shard = self.opened(number)
        self._files.make_ready_ahead(following)
        return shard

    def each(self) -> Iterator[Shard]:
        """Yield all shards in their order."""
        for number in range(len(self)):
            yield self.visited(number, min(number + 1, len(self) - 1))

    def batches(
        self, draw: Draw, batch_size: int, make: Make, *, seed: int, start: int
    ) -> Iterator[Batch]:
        """Yield batches without end; see `Dataset.batches`."""
        totals = self.totals(draw)
        drawn = [users for users, share in zip(totals.users, totals.shares, strict=True) if share]
        if draw.sample_by == "user" and batch_size > min(drawn):
            raise ConfigError(
                f"batch_size must not exceed the {min(drawn):,} training users of a shard with "
                f"more than min_history = {draw.min_history} items, got {batch_size:,}: lower one "
                "of them, or prepare the dataset with fewer shards"
            )
        per_pass = -(-totals.samples // batch_size)

        def drawn_batches() -> Iterator[Batch]:
            plan = visits(totals.shares, per_pass, seed=seed, start=start)
            for (number, first, last), following in pairwise(plan):
                shard = self.visited(number, following.shard)
                samples = shard.training.samples(draw, self.last_time).with_targets()
                yield from islice(make(shard, samples, first), last - first)

        return drawn_batches()

    def totals(self, draw: Draw) -> Totals:
        """Return what all shards have of samples; of other options than the stored by a pass."""
        draw.check()
        if draw not in self._totals:
            self._totals[draw] = self._counted(draw)
        return self._totals[draw]

    def _counted(self, draw: Draw) -> Totals:
        shares, users, samples, longest, any_target = [], [], 0, 0, False
        weights: np.ndarray | int = 0
        num_items = len(next(iter(self._laws.values()))) - 1
        for shard in self.each():
            found = shard.training.samples(draw, self.last_time)
            longest = max(longest, int(np.diff(shard.events.offsets).max()))
            any_target |= len(found.users) > 0
            found = found.with_targets()
            shares.append(found.total_weight)
            users.append(len(found.users))
            samples += found.count()
            if len(found.users):
                weights = weights + found.item_weights(shard.events.items, num_items)
        if not sum(shares):
            raise no_samples(draw, longest, weightless=any_target)
        return Totals(shares, users, samples, np.asarray(weights / sum(shares)))

    def sequences(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return users, offsets and items of all training parts, in memory."""
        users, lengths, items = [], [], []
        for shard in self.each():
            users.append(np.array(shard.users))
            lengths.append(np.diff(shard.events.offsets))
            items.append(np.array(shard.events.items))
        return np.concatenate(users), offsets_of(np.concatenate(lengths)), np.concatenate(items)

    def context(self, name: str, main: Feature) -> Feature:
        """Return a context feature that also finds the events of shards."""

        def elsewhere(event: int) -> tuple[Feature, int]:
            shard = self.opened((event >> EVENT_BITS) - 1)
            return shard.context[name], shard.first_event

        return replace(main, elsewhere=elsewhere)

    def verify(self) -> None:
        """Check the files of all shards; of those in an object store when they are fetched."""
        self._files.verify(len(self))


class ShardFiles:
    """The files of shards, in the dataset's folder; of one at `url` those that are needed now.

    `listed` are the checksums of the dataset's files by name. `check` gets the number of a shard
    whose files are as written, and raises `DataError` if its arrays do not fit together.
    """

    def __init__(
        self,
        folder: Path,
        listed: Mapping[str, str],
        check: Callable[[int], None],
        url: str | None = None,
    ) -> None:
        self.folder, self.listed, self._check, self._url = folder, listed, check, url
        self._checked: set[int] = set()
        self._ahead: tuple[int, Thread] | None = None  # the shard that is made ready meanwhile

    def ready(self, number: int) -> None:
        """Return once the files of a shard are there, and as they were written."""
        if self._ahead is not None and self._ahead[0] == number:
            self._ahead[1].join()
            self._ahead = None
        try:
            self._make_ready(number)
        except NoRoomError:  # beside others
            self.keep(number)
            self._make_ready(number)

    def make_ready_ahead(self, number: int) -> None:
        """Make a shard ready in the background, unless another one is being made ready."""
        if number in self._checked or (self._ahead is not None and self._ahead[1].is_alive()):
            return

        def work() -> None:
            with suppress(Exception):  # what fails is done again by who needs the shard
                self._make_ready(number)

        self._ahead = number, Thread(target=work, daemon=True)  # an exit does not wait for it
        self._ahead[1].start()

    def keep(self, *numbers: int) -> None:
        """Remove other shards that were fetched, unless another process uses them."""
        if self._url is None:
            return
        if self._ahead is not None and self._ahead[0] not in numbers:
            self._ahead[1].join()  # it would leave one shard more in the cache
            self._ahead = None
        names = {shard_name(number).rpartition("/")[2] for number in numbers}
        place = self.folder / FOLDER
        for path in place.iterdir() if place.is_dir() else ():
            if path.name not in names:
                release(path)
                remove_unused(path)
        self._checked &= set(numbers)

    def verify(self, count: int) -> None:
        """Check the files of `count` shards; fetched ones are compared when they are fetched."""
        for number in range(count) if self._url is None else ():
            self._make_ready(number)

    def _make_ready(self, number: int) -> None:
        if number in self._checked:
            return
        name = shard_name(number)
        files = {file: each for file, each in self.listed.items() if file.startswith(f"{name}/")}
        if self._url is not None:
            fetch_part(self._url, self.folder, name, files)
        else:
            for file, checksum in files.items():
                check_listed(self.folder, file, checksum)
        self._check(number)
        self._checked.add(number)
