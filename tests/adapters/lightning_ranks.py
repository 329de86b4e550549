"""Two processes train with Lightning; each writes down what its bank holds.

python lightning_ranks.py OUT: with the callback, after a resume, and without the callback.
"""

import json
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

from crossbatch.adapters.lightning import CrossBatchCallback
from crossbatch.negatives import CrossBatchSoftmax


class Towers(LightningModule):
    def __init__(self):
        super().__init__()
        self.users = torch.nn.Embedding(32, 4)
        self.items = torch.nn.Embedding(32, 4)
        self.loss_fn = CrossBatchSoftmax(dim=4, capacity=8, warmup_steps=1)

    def training_step(self, batch, _):
        ids = 2 * batch[0] + self.global_rank  # rank 0 sees the even ids, rank 1 the odd ones
        return self.loss_fn(self.users(ids), self.items(ids), ids)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(name, out, callbacks, **options):
    """Train both ranks on four batches of four ids each, in order."""
    torch.manual_seed(0)
    model = Towers()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=4,
        callbacks=callbacks,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
    )
    loader = DataLoader(TensorDataset(torch.arange(16)), batch_size=4)
    trainer.fit(model, loader, **options)
    rows = model.loss_fn.bank.read()
    found = {"ids": rows.item_ids.tolist(), "rows": rows.embeddings.tolist()}
    (out / f"{name}-{trainer.global_rank}.json").write_text(json.dumps(found))
    return trainer


def main():
    out = Path(sys.argv[1])
    trainer = fit("kept", out, [CrossBatchCallback(log_every=2)])
    trainer.save_checkpoint(out / "saved.ckpt")
    fit("resumed", out, [CrossBatchCallback()], ckpt_path=out / "saved.ckpt")
    fit("overwritten", out, [])
    # Threads of gloo that still run when the interpreter ends may abort the process.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
