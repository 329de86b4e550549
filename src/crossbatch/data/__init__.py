"""From raw logs to memory-mapped datasets, and from those to batches.

For example:

    dataset = open_dataset("books")
    batch = next(dataset.batches(128, seed=19))
"""

from __future__ import annotations

from crossbatch.data.dataset.batches import Batch, EvalBatch
from crossbatch.data.dataset.describe import describe
from crossbatch.data.dataset.features import Feature
from crossbatch.data.dataset.memory_mapped import Dataset, open_dataset
from crossbatch.data.prepare import PrepareOptions, append, prepare
from crossbatch.data.readers import READERS, ReadOptions, open_source
from crossbatch.data.readers.source import Column, Source

__all__ = [
    "READERS",
    "Batch",
    "Column",
    "Dataset",
    "EvalBatch",
    "Feature",
    "PrepareOptions",
    "ReadOptions",
    "Source",
    "append",
    "describe",
    "open_dataset",
    "open_source",
    "prepare",
]
