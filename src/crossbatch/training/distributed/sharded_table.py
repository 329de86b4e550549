"""`ShardedTable`: an id table whose rows are spread over the ranks, by TorchRec; and its files.

A step requests all the rows that it will read at once (`fetch`), distinct ones only: one exchange
of ids and rows in the forward pass, one of gradients in the backward pass, where the owner of a row
adds up the gradients of all ranks and updates it by row-wise Adagrad. In between, towers read the
fetched rows as they read any table. No rank ever holds another's rows, nor a gradient of the
table's size.

TorchRec is no dependency of the package: `requirements/torchrec-cpu.txt` says how it is installed.

Each rank writes its own rows as safetensors, and any number of ranks reads them back, also one
process without TorchRec. They are in a folder of the checkpoint, one file per rank; a tensor's name
is the one it would have in the checkpoint's other file, and the number of its first row:
`model.x.weight@1024`. (torch.distributed.checkpoint would do the same, but keeps its index as a
pickle.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional

from crossbatch.errors import ConfigError, DataError
from crossbatch.files import file_crc32, sync_path
from crossbatch.models.embedding import RowTable
from crossbatch.training.distributed.ranks import Ranks
from crossbatch.training.distributed.start import together
from crossbatch.training.optimizers.row_adagrad import EPS
from crossbatch.training.tensor_files import save_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 65_536  # rows that are initialised from one seed, whichever rank they fall to
NAME, FEATURE = "rows", "ids"


class ShardedTable(RowTable):
    """Rows that TorchRec spreads over the ranks of the default process group, row-wise.

    Args:
        num_rows: Rows, padding included.
        dim: Width d of a row.
        lr: Learning rate of row-wise Adagrad.
        seed: Of the first values: Glorot-uniform on the table's own shape, as `EmbeddingTable`;
            the same for any number of ranks.

    Raises:
        ConfigError: If TorchRec is not installed.
    """

    padding_row = 0

    def __init__(self, num_rows: int, dim: int, *, lr: float, seed: int) -> None:
        super().__init__()
        self.num_rows, self.dim = num_rows, dim
        # Not registered as a submodule: TorchRec saves, moves and updates its parameters itself.
        self._engine = (_engine(num_rows, dim, lr, seed),)
        self._ids = torch.empty(0, dtype=torch.int64)
        self._rows = torch.empty(0, dim)

    def fetch(self, ids: Tensor) -> None:
        """Make the rows of `ids` `[*]` ready to be read; every rank must call it, for its own."""
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        self._ids = ids.unique()
        self._ids = self._ids[self._ids != self.padding_row]
        lengths = torch.ones(len(self._ids), dtype=torch.int64, device=ids.device)
        requested = KeyedJaggedTensor(keys=[FEATURE], values=self._ids, lengths=lengths)
        rows: Tensor = self._engine[0](requested)[FEATURE].values()
        # Padding is a row of zeros that gets no gradient.
        self._rows = torch.cat([rows.new_zeros(1, self.dim), rows])

    def forward(self, ids: Tensor) -> Tensor:
        """Rows `[*, d]` of the ids `[*]`."""
        places, rows = self._places(ids)
        return functional.embedding(places, rows)

    def mean(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Mean row `[N, d]` of each of N bags; bag n is `ids[offsets[n]:offsets[n + 1]]`."""
        places, rows = self._places(ids)
        return functional.embedding_bag(places, rows, offsets, mode="mean")

    def set_rate(self, lr: float) -> None:
        """Set the learning rate of the next backward pass."""
        optimizer = self._engine[0].fused_optimizer
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()  # passes the rate to the tables, which are updated in the backward pass

    def shards(self) -> tuple[Any, Any]:
        """Rows `[R, d]` and sums of squares `[R]` as sharded tensors over the ranks' memory."""
        key, engine = f"embeddings.{NAME}.weight", self._engine[0]
        squares = engine.fused_optimizer.state_dict()["state"][key][f"{NAME}.momentum1"]
        return engine.state_dict()[key], squares

    def _places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Where ids stand among the rows at hand, and those rows."""
        if not torch.is_grad_enabled():
            self.fetch(ids)
        places = torch.searchsorted(self._ids, ids.contiguous())
        found = self._ids[places.clamp_max(len(self._ids) - 1)] if len(self._ids) else ids * 0
        if not bool(((found == ids) | (ids == self.padding_row)).all()):
            raise RuntimeError("a row is read that was not fetched; fetch all ids of a step first")
        return torch.where(ids == self.padding_row, 0, places + 1), self._rows


def _engine(num_rows: int, dim: int, lr: float, seed: int) -> Any:
    """TorchRec's sharded collection of one table, with its optimiser in the backward pass."""
    try:
        from torchrec.distributed.comm_ops import set_gradient_division
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
        from torchrec.distributed.types import ShardingEnv
        from torchrec.modules.embedding_configs import EmbeddingConfig
        from torchrec.modules.embedding_modules import EmbeddingCollection
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
    except ImportError:
        raise ConfigError(
            "tables that are spread over ranks need TorchRec; install it with "
            "pip install --no-deps -r requirements/torchrec-cpu.txt"
        ) from None

    size, rank = dist.get_world_size(), dist.get_rank()
    first_row = rank * -(-num_rows // size)

    def initialise(weight: Tensor) -> Tensor:
        return weight if weight.is_meta else _first_values(weight, num_rows, first_row, seed)

    config = EmbeddingConfig(
        num_embeddings=num_rows,
        embedding_dim=dim,
        name=NAME,
        feature_names=[FEATURE],
        init_fn=initialise,
    )
    collection = EmbeddingCollection(tables=[config], device=torch.device("meta"))
    apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), {"lr": lr, "eps": EPS})
    # Losses are divided by the rows of all ranks already.
    set_gradient_division(False)
    sharder = EmbeddingCollectionSharder()
    plan = construct_module_sharding_plan(
        collection,
        {NAME: row_wise()},
        sharder=sharder,
        local_size=size,
        world_size=size,
        device_type="cpu",
    )
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    return sharder.shard(collection, plan, env, torch.device("cpu"))


@torch.no_grad()
def _first_values(weight: Tensor, num_rows: int, first_row: int, seed: int) -> Tensor:
    """Fill rows `[n, d]` from `first_row` on with what they have on any number of ranks."""
    limit = (6.0 / (num_rows + weight.shape[1])) ** 0.5
    last_row = min(first_row + weight.shape[0], num_rows)
    for block in range(first_row // BLOCK, -(-last_row // BLOCK)):
        start = block * BLOCK
        generator = torch.Generator().manual_seed((seed << 32) + block)
        values = torch.empty(min(BLOCK, num_rows - start), weight.shape[1])
        values.uniform_(-limit, limit, generator=generator)
        values[: start == 0] = 0.0  # padding
        low, high = max(start, first_row), min(start + len(values), last_row)
        weight[low - first_row : high - first_row] = values[low - start : high - start]
    return weight


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
