"""Files of tables that are spread over ranks, by torch.distributed.checkpoint.

Each rank writes its own rows, and any number of ranks reads them back, one process without TorchRec
among them. They stand in a folder of the checkpoint, under the names that the tensors would have in
its other file.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from crossbatch.training.distributed.sharded_table import ShardedTable

FOLDER = "tables"


def save_tables(tables: dict[str, ShardedTable], checkpoint: Path) -> None:
    """Write the tables into the folder of a checkpoint; every rank calls it."""
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict_saver import save

    if not tables:
        return
    dist.barrier()  # the first rank has made the folder
    with _quiet():
        save(_state(tables), checkpoint_id=checkpoint / FOLDER)


def load_tables(
    tables: dict[str, ShardedTable], checkpoint: Path, tensors: dict[str, Tensor]
) -> None:
    """Restore the tables from the folder of a checkpoint, or from `tensors` of one process."""
    from torch.distributed.checkpoint.state_dict_loader import load

    if not tables:
        return
    state = _state(tables)
    if (checkpoint / FOLDER).is_dir():
        with _quiet():
            load(state, checkpoint_id=checkpoint / FOLDER)
        return
    for key, own in state.items():
        for shard in own.local_shards():
            start, size = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
            shard.tensor.copy_(tensors.pop(key)[start : start + size])


def whole_tables(checkpoint: Path) -> dict[str, Tensor]:
    """All rows of the tables of a checkpoint, for one process; nothing if it has none."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    folder = checkpoint / FOLDER
    if not folder.is_dir():
        return {}
    try:
        metadata: Any = FileSystemReader(folder).read_metadata().state_dict_metadata
        tensors = {key: torch.empty(entry.size) for key, entry in metadata.items()}
        with _quiet():
            load(tensors, checkpoint_id=folder, no_dist=True)
    except (OSError, RuntimeError, CheckpointException) as error:
        raise DataError(f"{folder} cannot be read: {error}") from None
    return tensors


def file_sizes(checkpoint: Path) -> dict[str, int]:
    """Bytes of each file of the tables, by name."""
    return {path.name: path.stat().st_size for path in (checkpoint / FOLDER).glob("*")}


def _state(tables: dict[str, ShardedTable]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, table in tables.items():
        rows, squares = table.shards()
        state |= {f"model.{name}.weight": rows, f"optimizer.table.{name}.squares": squares}
    return state


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings about types of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
