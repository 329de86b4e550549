"""Choose an index by measurement: time of one user's search, recall against exact search.

index, facts = choose_index(item_vectors, interests)
"""

import time
from dataclasses import dataclass

from torch import Tensor

from crossbatch.queries import Queries, rows_of
from crossbatch.retrieval.index import ExactIndex, Index
from crossbatch.retrieval.ivf import IVFIndex

CHOICES = ("auto", "exact", "ivf")
EXACT_MILLISECONDS = 10.0  # exact search is fast enough while one user waits no longer than this
TIMED_USERS = 20
LIST = 50  # length of the lists that are measured


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """Measurements of an index on the machine that built it.

    Attributes:
        name: "exact" or "ivf".
        probes: Cells that "ivf" looks into; 0 for "exact".
        k: Length of the measured lists.
        recall: Mean share of the exact list of k that the index finds.
        milliseconds: Time of one user's search.
        exact_milliseconds: The same by exact search.
        users: Users measured.
    """

    name: str
    probes: int
    k: int
    recall: float
    milliseconds: float
    exact_milliseconds: float
    users: int


def choose_index(
    vectors: Tensor,
    interests: Tensor | Queries,
    *,
    name: str = "auto",
    k: int = LIST,
    target: float = 0.99,
) -> tuple[ExactIndex | IVFIndex, IndexFacts]:
    """Build the index that suits a catalogue, and return it with its measurements.

    The rule of `"auto"`: exact search if it answers one user within `EXACT_MILLISECONDS` here, or
    faiss is missing; otherwise `"ivf"` with the fewest probes that reach the target recall,
    provided that it is faster.

    Args:
        vectors: `[N + 1, d]`, row = item id.
        interests: `[U, K, d]` of real users, or their `Queries`, for recall depends on them.
        name: One of `CHOICES`.
        k: Length of the lists to measure.
        target: Recall that an approximate index must reach.
    """
    if name not in CHOICES:
        raise ValueError(f"index must be one of {', '.join(CHOICES)}, got {name!r}")
    if not 0 < target <= 1:
        raise ValueError(f"recall must be in (0, 1], got {target}")
    exact = ExactIndex(vectors)
    plain = measure(exact, interests, k)
    if name == "exact" or (name == "auto" and plain.milliseconds <= EXACT_MILLISECONDS):
        return exact, plain
    try:
        index = IVFIndex.build(vectors)
    except ImportError:
        if name == "auto":
            return exact, plain
        raise
    tune(index, interests, k, target)
    facts = measure(index, interests, k)
    if facts.recall < target:  # users whose scores are so close that codes of 4 bits lose some
        index = IVFIndex.build(vectors, fine=True)
        tune(index, interests, k, target)
        facts = measure(index, interests, k)
    worth_it = facts.recall >= target and facts.milliseconds < plain.milliseconds
    return (index, facts) if name == "ivf" or worth_it else (exact, plain)


def measure(index: ExactIndex | IVFIndex, interests: Tensor | Queries, k: int = LIST) -> IndexFacts:
    """Recall against exact search, and times of both, over lists of k for real users."""
    k = min(k, index.num_items)
    exact = ExactIndex(index.vectors)
    exact_time = milliseconds(exact, interests, k)
    if isinstance(index, ExactIndex):
        return IndexFacts("exact", 0, k, 1.0, exact_time, exact_time, len(interests))
    recall = recall_of(index, interests, exact.search(interests, k).item_ids)
    spent = milliseconds(index, interests, k)
    return IndexFacts("ivf", index.probes, k, recall, spent, exact_time, len(interests))


def tune(index: IVFIndex, interests: Tensor | Queries, k: int, target: float) -> None:
    """Set the fewest probes, a power of two, that reach the target recall."""
    truth = ExactIndex(index.vectors).search(interests, min(k, index.num_items)).item_ids
    index.probes = 1
    # with every cell searched, what is still missing was lost by the codes
    while index.probes < index.num_cells and recall_of(index, interests, truth) < target:
        index.probes *= 2


def recall_of(index: Index, interests: Tensor | Queries, truth: Tensor) -> float:
    """Mean share of the true lists `[U, k]` that the index finds; empty places do not count."""
    found = index.search(interests, truth.shape[1]).item_ids
    real = truth > 0
    hits = (truth[:, :, None] == found[:, None, :]).any(dim=2) & real
    return hits.sum().item() / max(1, real.sum().item())


def milliseconds(index: Index, interests: Tensor | Queries, k: int) -> float:
    """Time of one user's search, the least of several: other work only ever adds to it."""
    spent = []
    for user in range(min(TIMED_USERS, len(interests))):
        one = rows_of(interests, slice(user, user + 1))
        start = time.perf_counter()
        index.search(one, k)
        spent.append(1000 * (time.perf_counter() - start))
    return min(spent)
