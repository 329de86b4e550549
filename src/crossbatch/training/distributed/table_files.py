"""Files of tables that are spread over ranks, as safetensors.

Each rank writes its own rows, and any number of ranks reads them back, also one process without
TorchRec. They are in a folder of the checkpoint, one file per rank; a tensor's name is the one it
would have in the checkpoint's other file, and the number of its first row: `model.x.weight@1024`.
(torch.distributed.checkpoint would do the same, but keeps its index as a pickle.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open

from crossbatch.errors import DataError
from crossbatch.files import file_crc32, sync_path
from crossbatch.training.distributed.ranks import Ranks
from crossbatch.training.distributed.start import together
from crossbatch.training.tensor_files import save_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from crossbatch.training.distributed.sharded_table import ShardedTable

TABLES = "tables"  # folder of a checkpoint


def save_tables(tables: dict[str, ShardedTable], checkpoint: Path) -> dict[str, int]:
    """Write the tables into the folder of a checkpoint; every rank calls it.

    Returns:
        CRC-32 of each rank's file, by name.
    """
    if not tables:
        return {}
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    ranks.wait()  # the first rank has made the folder
    path = checkpoint / TABLES / f"rank-{ranks.rank:05d}.safetensors"

    def write() -> int:
        path.parent.mkdir(exist_ok=True)
        save_tensors(path, {f"{key}@{first}": rows for key, first, rows in _own_rows(tables)})
        sync_path(path)
        return file_crc32(path)

    written = {path.name: together(ranks, write)}
    return {name: crc32 for each in ranks.collect_objects(written) for name, crc32 in each.items()}


def check_tables(checkpoint: Path, listed: Any, *, spread: bool) -> None:
    """Raise `DataError` unless the files are those that `save_tables` listed.

    If several ranks are to read them (`spread`), each checks its share of the files and all get the
    outcome, so that all choose the same checkpoint.
    """
    paths = sorted((checkpoint / TABLES).glob("*"))
    alone = not spread or not dist.is_initialized()
    ranks = Ranks(0, 1) if alone else Ranks(dist.get_rank(), dist.get_world_size())
    whole = isinstance(listed, dict) and set(listed) == {path.name for path in paths}
    whole = whole and all(
        file_crc32(path) == listed[path.name] for path in paths[ranks.rank :: ranks.size]
    )
    if not (whole if alone else all(ranks.collect_objects(whole))):
        raise DataError(f"checkpoint {checkpoint} is corrupted: its tables are not as saved")


def load_tables(
    tables: dict[str, ShardedTable], checkpoint: Path, tensors: dict[str, Tensor]
) -> None:
    """Restore the tables from the folder of a checkpoint, or from `tensors` of one process."""
    own = list(_own_rows(tables))
    parts = list(_stored(checkpoint)) or [
        Rows(key, 0, tensors.pop(key)) for key in dict.fromkeys(rows.key for rows in own)
    ]
    for rows in own:
        _fill(rows, parts)


def whole_tables(checkpoint: Path) -> dict[str, Tensor]:
    """All rows of the tables of a checkpoint, for one process; nothing if it has none."""
    parts = sorted(_stored(checkpoint), key=lambda part: part.first)
    whole = {}
    for key in dict.fromkeys(part.key for part in parts):
        found = [part.values for part in parts if part.key == key]
        shape = (sum(len(values) for values in found), *found[0].shape[1:])
        whole[key] = torch.empty(shape, dtype=found[0].dtype)
        _fill(Rows(key, 0, whole[key]), parts)
    return whole


class Rows(NamedTuple):
    """Consecutive rows of a table: its name in a checkpoint, the first one's number, `[n, …]`."""

    key: str
    first: int
    values: Tensor


def _own_rows(tables: dict[str, ShardedTable]) -> Iterator[Rows]:
    """This rank's rows, in their own memory."""
    for name, table in tables.items():
        rows, squares = table.shards()
        for key, sharded in (
            (f"model.{name}.weight", rows),
            (f"optimizer.table.{name}.squares", squares),
        ):
            for shard in sharded.local_shards():
                yield Rows(key, shard.metadata.shard_offsets[0], shard.tensor)


def _stored(checkpoint: Path) -> Iterator[Rows]:
    """The rows in the files of a checkpoint, mapped into memory."""
    for path in sorted((checkpoint / TABLES).glob("*")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    key, _, first = name.rpartition("@")
                    yield Rows(key, int(first), file.get_tensor(name))
        except (OSError, SafetensorError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None


def _fill(rows: Rows, parts: list[Rows]) -> None:
    """Copy into `rows` what the parts of the same table hold of them."""
    filled = 0
    for key, first, values in parts:
        start = max(first, rows.first)
        count = min(first + len(values), rows.first + len(rows.values)) - start
        if key == rows.key and count > 0 and values.shape[1:] == rows.values.shape[1:]:
            place = slice(start - rows.first, start - rows.first + count)
            rows.values[place].copy_(values[start - first : start - first + count])
            filled += count
    if filled != len(rows.values):
        raise DataError(f"the checkpoint has {filled} of {len(rows.values)} rows of {rows.key}")
