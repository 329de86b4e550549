"""The files of shards: fetched and checked before they are read, the next one's in the background.

Of a dataset in an object store, the cache has at most two shards for a run: the one that is read
and the next one.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from crossbatch.cache import NoRoomError, release, remove_unused
from crossbatch.data.dataset.manifest import check_listed
from crossbatch.data.dataset.shards import FOLDER, shard_name
from crossbatch.remote import fetch_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class ShardFiles:
    """Shards on the disk, in the dataset's folder.

    `listed` are the checksums of the dataset's files by name. `check` gets the number of a shard
    whose files are as written, and raises `DataError` if its arrays do not fit together.
    """

    def __init__(
        self, folder: Path, listed: Mapping[str, str], check: Callable[[int], None]
    ) -> None:
        self.folder, self.listed, self._check = folder, listed, check
        self._checked: set[int] = set()
        self._ahead: _Ahead | None = None

    def ready(self, number: int) -> None:
        """Return once the files of a shard are there, and as they were written."""
        if self._ahead is not None and self._ahead.number == number:
            ahead, self._ahead = self._ahead, None
            ahead.join()
        try:
            self._make_ready(number)
        except NoRoomError:  # beside others
            self.keep(number)
            self._make_ready(number)

    def make_ready_ahead(self, number: int) -> None:
        """Make a shard ready in the background, unless another one is being made ready."""
        if number in self._checked or (self._ahead is not None and self._ahead.is_alive()):
            return
        self._ahead = _Ahead(number, self._make_ready)
        self._ahead.start()

    def keep(self, *numbers: int) -> None:
        """Say that other shards are not needed now."""

    def verify(self, count: int) -> None:
        """Check the files of `count` shards."""
        for number in range(count):
            self._make_ready(number)

    def _make_ready(self, number: int) -> None:
        if number not in self._checked:
            self._provide(number)
            self._check(number)
            self._checked.add(number)

    def _provide(self, number: int) -> None:
        for name, checksum in self.files_of(number).items():
            check_listed(self.folder, name, checksum)

    def files_of(self, number: int) -> dict[str, str]:
        """Return the checksums of a shard's files by name in the dataset."""
        prefix = f"{shard_name(number)}/"
        return {name: each for name, each in self.listed.items() if name.startswith(prefix)}


class FetchedShards(ShardFiles):
    """Shards of the dataset at `url`, of which the cache has those that are needed.

    `folder` is the copy of the dataset without its shards.
    """

    def __init__(
        self, folder: Path, listed: Mapping[str, str], check: Callable[[int], None], url: str
    ) -> None:
        super().__init__(folder, listed, check)
        self._url = url

    def keep(self, *numbers: int) -> None:
        """Remove other shards, unless another process uses them."""
        if self._ahead is not None and self._ahead.number not in numbers:
            self._ahead.join()  # it would leave one shard more in the cache
            self._ahead = None
        names = {shard_name(number).rpartition("/")[2] for number in numbers}
        place = self.folder / FOLDER
        for path in place.iterdir() if place.is_dir() else ():
            if path.name not in names:
                release(path)
                remove_unused(path)
        self._checked &= set(numbers)

    def verify(self, count: int) -> None:
        """Check nothing: a shard is compared with its checksums when it is fetched."""

    def _provide(self, number: int) -> None:
        fetch_part(self._url, self.folder, shard_name(number), self.files_of(number))


class _Ahead(Thread):
    """Work on a shard in the background; what fails is done again by who needs the shard."""

    def __init__(self, number: int, work: Callable[[int], None]) -> None:
        super().__init__(name=f"shard-{number}", daemon=True)  # an exit does not wait for it
        self.number, self._work = number, work

    def run(self) -> None:
        """Do the work."""
        with suppress(Exception):
            self._work(self.number)
