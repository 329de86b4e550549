"""Prepared datasets: memory-mapped arrays, and batches of tensors from them."""

from __future__ import annotations

from crossbatch.data.dataset.batches import Batch, EvalBatch
from crossbatch.data.dataset.describe import describe
from crossbatch.data.dataset.features import Feature
from crossbatch.data.dataset.memory_mapped import Dataset, open_dataset

__all__ = ["Batch", "Dataset", "EvalBatch", "Feature", "describe", "open_dataset"]
