"""Negatives for two-tower models: columns, memory bank, samplers, sampled softmax, drop-in loss.

A library of its own that needs nothing but torch:

    loss_fn = CrossBatchSoftmax(dim=64, item_counts=counts)
    loss = loss_fn(u, v, item_ids)
"""

from crossbatch.negatives.cached_softmax import CachedSoftmax
from crossbatch.negatives.candidates import Candidates, Corpus
from crossbatch.negatives.cross_batch import CrossBatchSampler
from crossbatch.negatives.cross_batch_softmax import CrossBatchSoftmax
from crossbatch.negatives.diagnostics import diagnose, diagnose_bank
from crossbatch.negatives.frequency import (
    StreamingFrequency,
    item_frequency,
    no_correction,
    sampler_law,
)
from crossbatch.negatives.loss import NonFiniteLossError, sampled_softmax_loss
from crossbatch.negatives.masks import known_positives_mask
from crossbatch.negatives.memory_bank import MemoryBank
from crossbatch.negatives.samplers import (
    InBatchSampler,
    ItemEncoder,
    MixedSampler,
    NegativeSampler,
    UniformSampler,
)
from crossbatch.queries import Queries, best_interest

SAMPLERS: dict[str, type[NegativeSampler]] = {
    "uniform": UniformSampler,
    "in_batch": InBatchSampler,
    "mixed": MixedSampler,
    "cross_batch": CrossBatchSampler,
}

__all__ = [
    "SAMPLERS",
    "CachedSoftmax",
    "Candidates",
    "Corpus",
    "CrossBatchSampler",
    "CrossBatchSoftmax",
    "InBatchSampler",
    "ItemEncoder",
    "MemoryBank",
    "MixedSampler",
    "NegativeSampler",
    "NonFiniteLossError",
    "Queries",
    "StreamingFrequency",
    "UniformSampler",
    "best_interest",
    "diagnose",
    "diagnose_bank",
    "item_frequency",
    "known_positives_mask",
    "no_correction",
    "sampled_softmax_loss",
    "sampler_law",
]
