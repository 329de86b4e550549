"""The files of shards: checked before they are read, the next one's in the background."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from crossbatch.data.dataset.manifest import check_listed
from crossbatch.data.dataset.shards import shard_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class ShardFiles:
    """Shards on the disk.

    Args:
        folder: The dataset's folder.
        listed: Checksums of the dataset's files by name.
        check: Called with the number of a shard whose files are as written; raises `DataError` if
            its arrays do not fit together.
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
            ahead.wait()
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


class _Ahead(Thread):
    """Work on a shard in the background; an error is raised where its result is waited for."""

    def __init__(self, number: int, work: Callable[[int], None]) -> None:
        super().__init__(name=f"shard-{number}", daemon=True)  # an exit does not wait for it
        self.number, self._work = number, work
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work."""
        try:
            self._work(self.number)
        except BaseException as error:  # it belongs to the thread that waits
            self._error = error

    def wait(self) -> None:
        """Wait for the end of the work, and raise its error."""
        self.join()
        if self._error is not None:
            raise self._error
