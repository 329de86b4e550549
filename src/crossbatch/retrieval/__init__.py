"""Top-k over item vectors, exact and approximate: `ExactIndex(vectors).search(interests, k=50)`."""

from collections.abc import Callable

from crossbatch.retrieval.allowed import Allowed
from crossbatch.retrieval.choice import IndexFacts, choose_index
from crossbatch.retrieval.index import ExactIndex, Index
from crossbatch.retrieval.ivf import IVFIndex
from crossbatch.retrieval.topk import TopK

# From `[N + 1, d]` item vectors to an index.
INDEXES: dict[str, Callable[..., Index]] = {
    "exact": ExactIndex,
    "ivf": IVFIndex.build,
}

__all__ = [
    "INDEXES",
    "Allowed",
    "ExactIndex",
    "IVFIndex",
    "Index",
    "IndexFacts",
    "TopK",
    "choose_index",
]
