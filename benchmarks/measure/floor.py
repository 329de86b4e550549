"""The floor: a lower bound for the time of a training step, from counts and measured speeds.

    floor = FLOP / GEMM speed + rows · 6 · 4d bytes / bandwidth + exponentials · cost of one

FLOP are the multiplications and additions of the matrix products that any implementation needs,
forward and backward, over real history positions only (padding is free):

    MLP of n rows        3 · 2n Σ in·out       forward; backward for weights and for inputs
    mean of the history  2 · 2Pw               each of P positions in, its gradient out
    GRU                  3 · 2(Pw + (P − B)d)·3d   inputs and states, of which each first is zero
    MIND                 see `_mind`
    SASRec               see `_sasrec`
    recency pooling      3 · 2Pw               mean; gradients of the positions and their weights
    softmax              2BNd + 2BNd + 2BGd    logits; user gradient; gradient of the G live columns

Items are described by w = 2d numbers, id and category, in both towers.
A row of the id table costs its weight and two moments, read and written: 6 · 4d bytes.
Each logit, gate and routing weight costs one exponential. Everything else (biases, masks, random
draws, small tables, the towers' own optimiser, batch assembly) counts as free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN = 128


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a step.

    Attributes:
        B: Rows of a batch.
        d: Width of all vectors, of the id and the category embedding too.
        K: Interests of MIND.
        iterations: Rounds of MIND's routing.
        negatives: Columns of the uniform sampler.
        num_uniform: Uniform columns of the mixed sampler.
        M: Rows of the bank.
        L: Longest history.
        blocks: Attention layers of SASRec.
    """

    B: int = 128
    d: int = 64
    K: int = 4
    iterations: int = 3
    negatives: int = 1280
    num_uniform: int = 1152
    M: int = 2432
    L: int = 20
    blocks: int = 2

    @property
    def w(self) -> int:
        """Width of what describes an item: its id vector and its category's."""
        return 2 * self.d


@dataclass(frozen=True, slots=True)
class Columns:
    """What a sampler puts into the softmax besides each row's own positive.

    Attributes:
        encoded: Items that go through the item tower, the batch's positives included.
        live: Columns G that need a gradient.
        total: Columns N.
    """

    encoded: int
    live: int
    total: int


def columns(sampler: str, shape: Shape) -> Columns:
    """The columns of a sampler."""
    B, uniform, M = shape.B, shape.num_uniform, shape.M
    return {
        "uniform": Columns(B + shape.negatives, shape.negatives, shape.negatives),
        "in_batch": Columns(B, B, B),
        "mixed": Columns(B + uniform, B + uniform, B + uniform),
        "cross_batch": Columns(B, B, B + M),
    }[sampler]


@dataclass(frozen=True, slots=True)
class Work:
    """The least work of one step.

    Attributes:
        flop: By part of the step.
        rows: Distinct rows of the id table read and updated; may be a mean over batches.
        d: Width of a row.
        exponentials: Logits, gates, routing weights.
    """

    flop: dict[str, float]
    rows: float
    d: int
    exponentials: float

    @property
    def bytes(self) -> float:
        """Weights and moments of the rows, read and written."""
        return self.rows * 6 * 4 * self.d

    def seconds(self, speed: Speed) -> dict[str, float]:
        """The floor by cause, and its sum."""
        parts = {
            "matrix products": sum(self.flop.values()) / speed.flop_per_second,
            "rows": self.bytes / speed.bytes_per_second,
            "exponentials": self.exponentials * speed.seconds_per_exp,
        }
        return parts | {"floor": sum(parts.values())}


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of the machine, measured in the same run as the steps."""

    flop_per_second: float
    bytes_per_second: float
    seconds_per_exp: float


def work(model: str, sampler: str, shape: Shape, positions: float, rows: float) -> Work:
    """Count one step.

    Args:
        model: A key of `USER_TOWERS`.
        sampler: `"uniform"`, `"in_batch"`, `"mixed"` or `"cross_batch"`.
        shape: Sizes.
        positions: Real history positions P of a batch.
        rows: Distinct rows of the id table that a batch reads.
    """
    B, d = shape.B, shape.d
    chosen = columns(sampler, shape)
    user_flop, user_exponentials = USER_TOWERS[model](shape, positions)
    flop = {
        "item tower": 3 * 2 * chosen.encoded * (shape.w * HIDDEN + HIDDEN * d),
        "user tower": user_flop,
        "logits": 2 * B * chosen.total * d,
        "user gradient": 2 * B * chosen.total * d,
        "column gradient": 2 * B * chosen.live * d,
    }
    return Work(flop, rows, d, B * chosen.total + user_exponentials)


def _youtube_dnn(shape: Shape, P: float) -> tuple[float, float]:
    pooling = 2 * 2 * P * shape.w
    mlp = 3 * 2 * shape.B * (shape.w * HIDDEN + HIDDEN * shape.d)
    return pooling + mlp, 0


def _recency(shape: Shape, P: float) -> tuple[float, float]:
    flop, _ = _youtube_dnn(shape, P)
    return flop + 2 * P * shape.w, P


def _gru4rec(shape: Shape, P: float) -> tuple[float, float]:
    d = shape.d
    return 3 * 2 * (P * shape.w + (P - shape.B) * d) * 3 * d, 3 * P * d


def _mind(shape: Shape, P: float) -> tuple[float, float]:
    """Routing weights carry no gradient; interests do, as if the readout mixed all K of them.

    Forward: one product with the positions for every sum and for every agreement, after the
    bilinear map of every position, or before that of the K sums in every round, whichever is less;
    the dense layer; the scores of the readout. Backward: two products each for the dense layer and
    for the map of the K sums, and the gradient of the positions.
    """
    B, d, w, K, rounds = shape.B, shape.d, shape.w, shape.K, shape.iterations
    mapped = 2 * w * d * P + 2 * K * P * d * (2 * rounds - 1)
    unmapped = (2 * w * d * B * K + 2 * K * P * w) * (2 * rounds - 1)
    forward = min(mapped, unmapped) + 2 * B * K * d * d + 2 * B * K * d
    backward = 2 * 2 * B * K * d * d + 2 * 2 * w * d * min(P, B * K) + 2 * K * P * w
    return forward + backward, rounds * K * P


def _sasrec(shape: Shape, P: float) -> tuple[float, float]:
    """Every block but the last works on all positions, the last one for B readers.

    Forward of a position: the map from w to d, then in each block query, key, value, the layer
    behind attention and two layers of the network; in the last block key and value alone, the
    others for the readers. Attention: two products of a query with each item that it sees; a
    history of n items has n(n + 1)/2 such pairs, of all histories together at least as many as if
    all were equally long. Backward: twice as many products each.
    """
    B, d, earlier = shape.B, shape.d, shape.blocks - 1
    pairs = earlier * P * (P / B + 1) / 2 + P
    dense = P * shape.w * d + (6 * earlier + 2) * P * d * d + 4 * B * d * d
    return 3 * 2 * (dense + 2 * pairs * d), pairs


USER_TOWERS: dict[str, Callable[[Shape, float], tuple[float, float]]] = {
    "youtube_dnn": _youtube_dnn,
    "gru4rec": _gru4rec,
    "mind": _mind,
    "sasrec": _sasrec,
    "recency": _recency,
}
