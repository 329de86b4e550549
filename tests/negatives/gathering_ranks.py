"""Two processes share their batches through the loss; each writes what it has found.

python gathering_ranks.py OUT RANK
"""

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from crossbatch.negatives import CachedSoftmax, CrossBatchSoftmax, StreamingFrequency

SIZES = ((5, 5), (6, 4), (3, 7))  # rows of the two processes in each step
COUNTS = torch.arange(1, 14).double()
CASES = {
    "plain": {},
    "symmetric": {"symmetric": True},
    "masks": {"mask": "none", "item_gradient": "paper"},
    "streaming": {"item_counts": None},
}


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.users, self.items = nn.Linear(3, 4).double(), nn.Linear(3, 4).double()

    def forward(self, x, y):
        return self.users(x), self.items(y)


def loss_of(case, **more):
    options = {"item_counts": COUNTS, "temperature": 0.5} | CASES[case] | more
    if case == "streaming":
        options["item_counts"] = StreamingFrequency(64)
    return CrossBatchSoftmax(4, 12, 1, **options).double()


def batch(step):
    """The whole batch of a step: inputs, ids, weights and what users like."""
    generator = torch.Generator().manual_seed(step)
    total = sum(SIZES[step])
    x, y = (torch.randn(total, 3, generator=generator).double() for _ in range(2))
    ids = torch.randint(1, 13, (total,), generator=generator)
    weights = torch.rand(total, generator=generator).double()
    known = torch.randint(1, 13, (total, 2), generator=generator)
    return x, y, ids, weights, known


def steps(case, model, loss_fn, share, after=lambda: None, cached=False):
    """Losses, gradients and bank of three steps on a `share` of the rows."""
    found = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(len(SIZES)):
        x, y, ids, weights, known = (each[share(step)] for each in batch(step))
        options = {"weights": weights, "known_positives": known}
        if cached:
            step_fn = CachedSoftmax(loss_fn, model.users, model.items, chunk_size=2)
            loss = step_fn(x, y, ids, **options)
        else:
            loss = loss_fn(*model(x, y), ids, **options)
        optimizer.zero_grad()
        loss.backward()
        after()
        found.append(loss.detach())
        found += [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    rows = loss_fn.bank.read()
    return [*found, rows.embeddings, rows.item_ids, rows.log_q]


def main():
    out, rank = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", f"file://{out / 'store'}", rank=rank, world_size=2)

    def share(step):
        first = sum(SIZES[step][:rank])
        return slice(first, first + SIZES[step][rank])

    found = {}
    for case in CASES:
        loss_fn = loss_of(case, process_group=dist.group.WORLD)
        found[case] = steps(case, DistributedDataParallel(Towers()), loss_fn, share)
    # Without DistributedDataParallel: gradients are averaged by hand.
    model = Towers()

    def average():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2

    loss_fn = loss_of("symmetric", process_group=dist.group.WORLD)
    found["cached"] = steps("symmetric", model, loss_fn, share, average, cached=True)
    assert copy.deepcopy(loss_fn).process_group is loss_fn.process_group
    torch.save(found, out / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
