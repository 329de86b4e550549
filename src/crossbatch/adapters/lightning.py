"""PyTorch Lightning: a callback for modules that use `CrossBatchSoftmax`.

    class Towers(LightningModule):
        def __init__(self):
            self.loss_fn = CrossBatchSoftmax(dim=64, item_counts=counts)
        def training_step(self, batch, _):
            return self.loss_fn(self.users(batch), self.items(batch), batch["item_id"])

    Trainer(callbacks=[CrossBatchCallback()]).fit(Towers(), loader)

On one device Lightning saves the bank with the module, and that is enough. On several it is not:
DistributedDataParallel overwrites every rank's bank with rank 0's at each step, and a checkpoint
holds rank 0's alone. The callback corrects both and logs the loss's diagnostics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed

from crossbatch.adapters import needs
from crossbatch.negatives import CrossBatchSoftmax

with needs("lightning"):
    from lightning.pytorch.callbacks import Callback

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

STATE = "crossbatch_ranks"  # key of the checkpoint


class CrossBatchCallback(Callback):
    """Keeps the banks of the ranks separate, saves and restores them, and logs diagnostics.

    Args:
        log_every: Steps between calls of `stats()`, whose cost is about that of a loss; 0 for none.
            The numbers are logged as `negatives/…`, with the losses' names before them if there
            are several.
    """

    def __init__(self, log_every: int = 50) -> None:
        if log_every < 0:
            raise ValueError(f"log_every must be 0 (never) or more, got {log_every}")
        self.log_every = log_every

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Exclude the banks from DistributedDataParallel's buffers, before it wraps the module."""
        known = set(getattr(pl_module, "_ddp_params_and_buffers_to_ignore", ()))
        names = {
            f"{name}.{buffer}"
            for name, loss in losses_of(pl_module).items()
            for buffer, _ in loss.named_buffers()
        }
        # The attribute that torch's DDP reads; its setter there is private too.
        pl_module._ddp_params_and_buffers_to_ignore = sorted(known | names)  # type: ignore[assignment]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the diagnostics every `log_every` steps."""
        if not self.log_every or trainer.global_step % self.log_every:
            return
        losses = losses_of(pl_module)
        for name, loss in losses.items():
            prefix = "negatives/" if len(losses) == 1 else f"negatives/{name}/"
            pl_module.log_dict({f"{prefix}{key}": value for key, value in loss.stats().items()})

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the banks of all ranks; Lightning calls this on each of them."""
        if trainer.world_size == 1:
            return
        states = {name: loss.state_dict() for name, loss in losses_of(pl_module).items()}
        mine = {name: {key: v.cpu() for key, v in state.items()} for name, state in states.items()}
        ranks: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(ranks, mine)
        checkpoint[STATE] = ranks

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore this rank's bank; the module's weights were restored before.

        Ranks beyond the saved number begin with another rank's bank.
        """
        ranks = checkpoint.get(STATE)
        if ranks is None:
            return
        saved = ranks[trainer.global_rank % len(ranks)]
        for name, loss in losses_of(pl_module).items():
            loss.load_state_dict(saved[name])


def losses_of(module: LightningModule) -> dict[str, CrossBatchSoftmax]:
    """Return the losses with a bank in a module by their path.

    Raises:
        ValueError: If there is none.
    """
    found = {
        name: each for name, each in module.named_modules() if isinstance(each, CrossBatchSoftmax)
    }
    if not found:
        raise ValueError(
            f"{type(module).__name__} holds no CrossBatchSoftmax; set one as an attribute, such as "
            "self.loss_fn"
        )
    return found
