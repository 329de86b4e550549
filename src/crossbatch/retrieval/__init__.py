"""Exact top-k over item vectors: `ExactIndex(vectors).search(interests, k=50)`."""

from collections.abc import Callable

from crossbatch.retrieval.index import ExactIndex, Index, TopK

INDEXES: dict[str, Callable[..., Index]] = {
    "exact": ExactIndex,
}

__all__ = ["INDEXES", "ExactIndex", "Index", "TopK"]
