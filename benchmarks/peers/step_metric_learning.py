"""pytorch-metric-learning's `CrossBatchMemory` around `NTXentLoss`, on the plain two towers.

Users are the queries, items fill the memory (`enqueue_mask`), labels are item ids. The optimiser is
the fast one, `SparseAdam`, so that the time shown is the loss's own.
"""

import torch
from pytorch_metric_learning.losses import CrossBatchMemory, NTXentLoss

from peers.samples import BATCH_SIZE, CAPACITY, DIM, Samples
from peers.serve import Step, serve
from peers.two_tower import TwoTower, loaded, optimizers


def prepared(samples: Samples) -> Step:
    torch.manual_seed(0)
    model = TwoTower(samples, sparse=True)
    steppers = optimizers(model, sparse=True)
    criterion = CrossBatchMemory(NTXentLoss(), embedding_size=DIM, memory_size=CAPACITY)
    with torch.no_grad():  # the memory is full from the first step on
        known = torch.from_numpy(samples.items[: CAPACITY + 1])
        criterion(
            torch.randn(CAPACITY + 1, DIM), known, enqueue_mask=torch.arange(CAPACITY + 1) > 0
        )
    batches = loaded(samples)
    enqueue = torch.arange(2 * BATCH_SIZE) >= BATCH_SIZE

    def step() -> None:
        history, items = next(batches)
        vectors = torch.cat([model.users(history), model.items(items)])
        loss = criterion(vectors, torch.cat([items, items]), enqueue_mask=enqueue)
        for stepper in steppers:
            stepper.zero_grad()
        loss.backward()
        for stepper in steppers:
            stepper.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    samples = Samples.from_command_line()
    rows = {"pytorch-metric-learning CrossBatchMemory": lambda: prepared(samples)}
    serve(rows, ("pytorch-metric-learning", "torch", "numpy"))


if __name__ == "__main__":
    main()
