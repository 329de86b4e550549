"""Sharded tables: one step on several ranks, and their files."""

import json
import os
import pickle
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from crossbatch.errors import ConfigError, DataError
from crossbatch.files import file_crc32, sealed
from crossbatch.training import checkpoint
from crossbatch.training.checkpoint import load
from crossbatch.training.distributed.sharded_table import (
    TABLES,
    ShardedTable,
    _first_values,
    load_tables,
)
from crossbatch.training.loop import EarlyStopping
from crossbatch.training.run_folder import RunFolder
from crossbatch.training.tensor_files import save_tensors

from .launching import run
from .sharded import RECIPE, metrics, resumed, steps

HAS_TORCHREC = find_spec("torchrec") is not None
WORKER = __file__.replace("test_sharded_table", "sharded")
STEPS = 6


@pytest.mark.skipif(HAS_TORCHREC, reason="TorchRec is installed here")
def test_missing_torchrec_is_one_clear_message():
    with pytest.raises(ConfigError, match=r"need TorchRec; install it with pip install --no-deps"):
        ShardedTable(10, 4, lr=0.1, seed=0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_first_values_do_not_depend_on_the_number_of_ranks(ranks, monkeypatch):
    monkeypatch.setattr("crossbatch.training.distributed.sharded_table.BLOCK", 8)
    whole = _first_values(torch.empty(29, 4), 29, 0, seed=3)
    each = -(-29 // ranks)
    parts = [
        _first_values(torch.empty(max(0, min(each, 29 - start)), 4), 29, start, seed=3)
        for start in range(0, each * ranks, each)
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert whole[0].eq(0).all()
    assert whole[1:].abs().max() <= (6 / 33) ** 0.5
    assert whole[1:].std() == pytest.approx((6 / 33) ** 0.5 / 3**0.5, rel=0.2)


@pytest.mark.skipif(not HAS_TORCHREC, reason="needs TorchRec: make test-cluster")
@pytest.mark.slow
def test_ranks_learn_what_one_process_learns_and_hand_over(dataset, tmp_path):
    folder = RunFolder(tmp_path / "run", resume=False)
    alone = resumed(dataset, folder)
    folder.save_checkpoint(alone, EarlyStopping(1), {}, keep=9)
    folder.close()
    for ranks in (2, 3):  # 2 resume what one process saved, 3 resume what 2 saved
        run(ranks, [WORKER, str(dataset.path), str(folder.path), str(STEPS)])
        found = json.loads((folder.path / f"{ranks}.json").read_text())
        assert found["losses"] == pytest.approx(steps(dataset, alone, STEPS), rel=1e-5)
        assert found["metrics"] == pytest.approx(metrics(dataset, alone), abs=3e-3, nan_ok=True)
        saved, _ = load(folder.checkpoints / folder.newest_checkpoint())
        assert not (folder.path / "checkpoints" / ".partial").exists()
        keeper = alone.optimizer.tables["item_tower.table"]
        for key, expected in {
            "model.item_tower.table.weight": alone.model.item_tower.table.weight.detach(),
            "optimizer.table.item_tower.table.squares": keeper.squares,
        }.items():
            torch.testing.assert_close(saved[key], expected, rtol=1e-4, atol=1e-6)
    again = resumed(dataset, folder)  # one process resumes what 3 saved
    assert again.step == 2 * STEPS
    assert steps(dataset, again, 3) == pytest.approx(steps(dataset, alone, 3), rel=1e-5)
    assert RECIPE.train.tables == "sharded"


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
