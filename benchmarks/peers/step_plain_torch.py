"""Plain PyTorch: `nn.Embedding`, autograd, `SparseAdam` or `Adam`; cross-entropy of the batch."""

from functools import partial

import numpy as np
import torch
from torch.nn import functional

from peers.samples import BATCH_SIZE, NEGATIVES, Samples
from peers.serve import Step, serve
from peers.two_tower import TwoTower, loaded, negatives, optimizers


def prepared(samples: Samples, *, sparse: bool, uniform: bool = False) -> Step:
    """One step; with `uniform`, 1280 negatives shared by the batch instead of the batch itself."""
    torch.manual_seed(0)
    model = TwoTower(samples, sparse=sparse)
    steppers = optimizers(model, sparse=sparse)
    batches, rng = loaded(samples), np.random.default_rng(0)
    own = torch.arange(BATCH_SIZE)
    first = torch.zeros(BATCH_SIZE, dtype=torch.int64)

    def step() -> None:
        history, items = next(batches)
        u = model.users(history)
        if uniform:
            both = model.items(torch.cat([items, negatives(samples, rng, NEGATIVES)]))
            v, others = both.split([BATCH_SIZE, NEGATIVES])
            logits, labels = torch.cat([(u * v).sum(1, keepdim=True), u @ others.T], 1), first
        else:
            logits, labels = u @ model.items(items).T, own
        loss = functional.cross_entropy(logits, labels)
        for stepper in steppers:
            stepper.zero_grad()
        loss.backward()
        for stepper in steppers:
            stepper.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    samples = Samples.from_command_line()
    rows = {
        "plain PyTorch, SparseAdam": partial(prepared, samples, sparse=True),
        "plain PyTorch, Adam": partial(prepared, samples, sparse=False),
        "plain PyTorch, Adam, uniform": partial(prepared, samples, sparse=False, uniform=True),
    }
    serve(rows, ("torch", "numpy"))


if __name__ == "__main__":
    main()
