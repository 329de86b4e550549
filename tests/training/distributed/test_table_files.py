"""Files of spread tables: any number of ranks reads them, every damage shows, no code is run."""

import json
import os
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from crossbatch.errors import DataError
from crossbatch.files import file_crc32, sealed
from crossbatch.training import checkpoint
from crossbatch.training.distributed.sharded_table import TABLES, load_tables
from crossbatch.training.tensor_files import save_tensors

WEIGHT, SQUARES = "model.t.weight", "optimizer.table.t.squares"
TABLE = torch.arange(44.0).view(11, 4)


class Spread:
    """A table of which this process has the rows from `first` on."""

    def __init__(self, first: int, rows: torch.Tensor) -> None:
        self.first, self.rows, self.sums = first, rows.clone(), rows.sum(1)

    def shards(self):
        return [
            SimpleNamespace(
                local_shards=lambda values=values: [
                    SimpleNamespace(
                        tensor=values, metadata=SimpleNamespace(shard_offsets=[self.first])
                    )
                ]
            )
            for values in (self.rows, self.sums)
        ]


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def saved(alone, tmp_path):
    """A checkpoint as two ranks would have written it."""
    path = tmp_path / "step-1"
    checkpoint.save(path, {"a": torch.ones(2)}, {"step": 1}, {"t": Spread(0, TABLE[:6])})
    second = path / TABLES / "rank-00001.safetensors"
    save_tensors(second, {f"{WEIGHT}@6": TABLE[6:], f"{SQUARES}@6": TABLE[6:].sum(1)})
    update_checksums(path)
    return path


def update_checksums(path) -> None:
    """Forge a document that lists the tables as they are."""
    document = json.loads((path / checkpoint.DOCUMENT).read_text())
    del document["seal"]
    files = (path / TABLES).iterdir()
    document["tables"] = {file.name: file_crc32(file) for file in files}
    (path / checkpoint.DOCUMENT).write_text(json.dumps(sealed(document)))


def test_one_process_reads_what_two_wrote(saved):
    tensors, _ = checkpoint.load(saved)
    assert torch.equal(tensors[WEIGHT], TABLE)
    assert torch.equal(tensors[SQUARES], TABLE.sum(1))
    assert torch.equal(tensors["a"], torch.ones(2))


@pytest.mark.parametrize(("first", "last"), [(0, 4), (4, 8), (8, 11), (5, 7), (11, 11)])
def test_three_processes_read_what_two_wrote(saved, first, last):
    mine = Spread(first, torch.zeros(last - first, 4))
    load_tables({"t": mine}, saved, {})
    assert torch.equal(mine.rows, TABLE[first:last])
    assert torch.equal(mine.sums, TABLE[first:last].sum(1))


def test_ranks_read_what_one_process_wrote(tmp_path):
    mine, whole = Spread(4, torch.zeros(5, 4)), {WEIGHT: TABLE, SQUARES: TABLE.sum(1)}
    load_tables({"t": mine}, tmp_path, whole)
    assert torch.equal(mine.rows, TABLE[4:9])
    assert not whole  # what the tables hold is no part of the model's own weights


@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize("bit", range(0, 8 * 500, 397))
def test_bug_a_flipped_bit_in_a_spread_table_was_not_noticed(saved, bit, tables):
    path = saved / TABLES / "rank-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(DataError, match="corrupted: its tables are not as saved"):
        checkpoint.load(saved, tables=tables)


def test_a_missing_and_a_further_file_are_noticed(saved):
    second = saved / TABLES / "rank-00001.safetensors"
    second.rename(saved / TABLES / "rank-00002.safetensors")
    with pytest.raises(DataError, match="corrupted"):
        checkpoint.load(saved)


def test_missing_rows_are_noticed(saved):
    (saved / TABLES / "rank-00000.safetensors").unlink()
    update_checksums(saved)
    with pytest.raises(DataError, match=r"has 0 of 5 rows of model\.t\.weight"):
        checkpoint.load(saved)


class Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("name", [".metadata", "rank-00000.safetensors", "__0_0.distcp"])
def test_bug_a_checkpoint_with_tables_could_run_code(saved, tmp_path, name):
    (saved / TABLES / name).write_bytes(pickle.dumps(Evil(str(tmp_path / "ran"))))
    update_checksums(saved)
    with pytest.raises(DataError, match="cannot be read"):
        checkpoint.load(saved)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("listed", [7, ["rank-00000.safetensors"], {"../../x": 1}, None])
def test_forged_lists_of_tables_are_refused(saved, listed):
    document = json.loads((saved / checkpoint.DOCUMENT).read_text())
    del document["seal"]
    document["tables"] = listed
    (saved / checkpoint.DOCUMENT).write_text(json.dumps(sealed(document)))
    with pytest.raises(DataError, match="corrupted"):
        checkpoint.load(saved)


@pytest.mark.parametrize("name", [WEIGHT, f"{WEIGHT}@x", f"{WEIGHT}@99999999999999999999"])
def test_forged_names_of_rows_are_refused(saved, name):
    save_tensors(saved / TABLES / "rank-00000.safetensors", {name: TABLE[:6]})
    update_checksums(saved)
    with pytest.raises(DataError):
        checkpoint.load(saved)
