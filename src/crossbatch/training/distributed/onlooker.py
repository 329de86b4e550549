"""The run folder as every rank but the first sees it: they read it, the first one writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crossbatch.training import checkpoint
from crossbatch.training.distributed.table_files import save_tables
from crossbatch.training.journal import Journal
from crossbatch.training.run_folder import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.training.distributed.ranks import Ranks
    from crossbatch.training.loop import EarlyStopping
    from crossbatch.training.step import Trainer


class Onlooker(RunFolder):
    """A run folder that another process writes; whatever would change it does nothing."""

    writes = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_config(self, config: dict[str, Any]) -> None:
        """Nothing."""

    def journal(self, length: int) -> Journal:
        """A journal that nobody reads."""
        return Unwritten()

    def save_checkpoint(
        self, trainer: Trainer, stopping: EarlyStopping, document: dict[str, Any], keep: int
    ) -> None:
        """Nothing but this rank's rows of tables that are spread over ranks."""
        path = checkpoint.partial_path(self.checkpoint_path(trainer.step))
        save_tables(trainer.optimizer.sharded, path)

    def save_best(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Nothing but this rank's rows of tables that are spread over ranks."""
        save_tables(trainer.optimizer.sharded, checkpoint.partial_path(self.best))

    def write_result(self, result: dict[str, Any]) -> None:
        """Nothing."""

    def drop_checkpoints(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Unwritten(Journal):
    """A journal whose lines go nowhere."""

    def __init__(self) -> None:
        self.crc32 = 0

    def write(self, event: str, step: int, **fields: Any) -> None:
        """Nothing."""

    def length(self) -> int:
        """Nothing is no bytes."""
        return 0

    def close(self) -> None:
        """Nothing."""


def open_folder(path: Path, *, resume: bool, ranks: Ranks | None) -> RunFolder:
    """The run folder, to write on the first rank and to read on the others."""
    return RunFolder(path, resume=resume) if ranks is None or ranks.first else Onlooker(path)
