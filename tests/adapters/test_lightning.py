"""A Lightning module with a bank: exact resume, logged diagnostics, and two ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from crossbatch.adapters.lightning import CrossBatchCallback, losses_of
from crossbatch.negatives import CrossBatchSoftmax

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning advises about workers and loggers


class Towers(LightningModule):
    def __init__(self):
        super().__init__()
        self.users = torch.nn.Embedding(40, 8)
        self.items = torch.nn.Embedding(40, 8)
        self.loss_fn = CrossBatchSoftmax(dim=8, capacity=16, warmup_steps=2)
        self.losses = []

    def training_step(self, batch, _):
        (ids,) = batch
        loss = self.loss_fn(self.users(ids), self.items(ids), ids)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        (ids,) = batch
        self.log("valid", self.loss_fn(self.users(ids), self.items(ids), ids))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


def fit(tmp_path, *, epochs, callbacks=(), **options):
    torch.manual_seed(0)
    model = Towers()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[CrossBatchCallback(log_every=2), *callbacks],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    loader = DataLoader(TensorDataset(torch.arange(40)), batch_size=8)
    trainer.fit(model, loader, loader, **options)
    return trainer, model


def test_a_resumed_training_is_the_same_to_the_bit(tmp_path):
    saving = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
    _, whole = fit(tmp_path, epochs=2, callbacks=[saving])
    _, resumed = fit(tmp_path, epochs=2, ckpt_path=tmp_path / "epoch=0.ckpt")
    assert resumed.losses == whole.losses[5:]
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_validation_leaves_the_bank_alone(tmp_path):
    _, model = fit(tmp_path, epochs=1)
    assert int(model.loss_fn.bank.step) == 5  # training batches; sanity check and validation: none
    assert len(model.loss_fn.bank) == 16


def test_diagnostics_are_logged(tmp_path):
    trainer, _ = fit(tmp_path, epochs=1)
    assert {"negatives/hardness", "negatives/bank_fill"} <= set(trainer.callback_metrics)


def test_a_module_without_a_loss_is_refused(tmp_path):
    model = Towers()
    assert list(losses_of(model)) == ["loss_fn"]
    model.loss_fn = torch.nn.Identity()
    with pytest.raises(ValueError, match="holds no CrossBatchSoftmax"):
        losses_of(model)
    with pytest.raises(ValueError, match="log_every"):
        CrossBatchCallback(log_every=-1)


@pytest.mark.slow
def test_every_rank_keeps_its_own_bank(tmp_path):
    script = Path(__file__).with_name("lightning_ranks.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    banks = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert banks["kept-0"]["ids"] == [16, 18, 20, 22, 24, 26, 28, 30]
    assert banks["kept-1"]["ids"] == [17, 19, 21, 23, 25, 27, 29, 31]
    assert banks["resumed-0"] == banks["kept-0"]
    assert banks["resumed-1"] == banks["kept-1"]
    # The trap: without the callback, rank 0's rows stand in rank 1's bank.
    assert any(item % 2 == 0 for item in banks["overwritten-1"]["ids"])
