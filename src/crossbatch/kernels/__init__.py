"""Operations that pay for themselves: compiled by numba, with their plain torch definitions.

Each file holds one operation: its definition in plain torch, the compiled form, and the
`torch.autograd.Function` that joins the two; a long compiled form has a file of its own beside it,
`…_compiled.py`. `OPS` lists the operations; one contract test compares all of them with their
definitions. This is the only package that may import numba, and it does so when a
compiled function is first called: everything here works, slower, with torch alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from crossbatch.kernels import (
    attention,
    coarse_scores,
    distinct_ids,
    dropout,
    gru,
    history_means,
    known_columns,
    products,
    routing,
    sampled_softmax,
    table_rows,
    topk_scan,
    unit_vectors,
)
from crossbatch.kernels.compiler import HAS_NUMBA, available, switched_off, usable


class Operation(NamedTuple):
    """An operation and what it must equal, arguments and gradients alike."""

    run: Callable[..., Any]
    definition: Callable[..., Any]


OPS = {
    "attention": Operation(attention.attention, attention.definition),
    "coarse_scores": Operation(coarse_scores.coarse_scores, coarse_scores.definition),
    "distinct_ids": Operation(distinct_ids.distinct_ids, distinct_ids.definition),
    "dropout": Operation(dropout.dropout, dropout.definition),
    "gru_states": Operation(gru.gru_states, gru.definition),
    "history_mean": Operation(history_means.history_mean, history_means.mean_definition),
    "gather_rows": Operation(table_rows.gather_rows, table_rows.gather_definition),
    "linear": Operation(products.linear, products.definition),
    "known_columns": Operation(known_columns.known_columns, known_columns.definition),
    "recency_mean": Operation(history_means.recency_mean, history_means.definition),
    "mean_rows": Operation(table_rows.mean_rows, table_rows.mean_definition),
    "routed_interests": Operation(routing.routed_interests, routing.definition),
    "sampled_softmax": Operation(sampled_softmax.sampled_softmax, sampled_softmax.definition),
    "scores_above": Operation(topk_scan.scores_above, topk_scan.definition),
    "unit_vectors": Operation(unit_vectors.unit_vectors, unit_vectors.definition),
}

__all__ = ["HAS_NUMBA", "OPS", "Operation", "available", "switched_off", "usable"]
