"""One rank of a test: `python worker.py DATASET OUT CASE…`, with the variables of torchrun set."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import cases  # type: ignore[import-not-found]

from crossbatch.data import open_dataset
from crossbatch.training.distributed import gradients
from crossbatch.training.distributed.start import joined

torch.set_num_threads(1)
gradients.BUCKET = 64  # the towers are small, and should have several buckets
dataset = open_dataset(Path(sys.argv[1]))
with joined(timeout=1800) as ranks:
    for case in sys.argv[3:]:
        found = cases.outcome(dataset, case, ranks)
        torch.save(found, Path(sys.argv[2]) / f"{case}-{ranks.rank}.pt")
    counts = [cases.counted_bytes(dataset, ranks, batch) for batch in cases.BATCHES]
    torch.save(counts, Path(sys.argv[2]) / f"bytes-{ranks.rank}.pt")
    lists = [cases.searched(ranks, num_items) for num_items in cases.CATALOGUES]
    found = [(top.scores, top.item_ids) for top in lists]
    torch.save(found, Path(sys.argv[2]) / f"lists-{ranks.rank}.pt")
