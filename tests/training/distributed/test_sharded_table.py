"""A table spread over ranks learns what one table learns, and moves between numbers of ranks."""

import json
from importlib.util import find_spec

import pytest
import torch

from crossbatch.errors import ConfigError
from crossbatch.training.checkpoint import load
from crossbatch.training.distributed.sharded_table import ShardedTable, _first_values
from crossbatch.training.loop import EarlyStopping
from crossbatch.training.run_folder import RunFolder

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
