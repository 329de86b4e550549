"""What these tests share: a brute-force softmax in plain Python floats, and random batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from crossbatch.negatives import Candidates

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Truth:
    """Losses [B] and the gradients of Σ_r weight_r · loss_r, in float64."""

    losses: Tensor
    users: Tensor
    positives: Tensor
    negatives: Tensor


def brute_force(
    users: Tensor,
    positives: Candidates,
    negatives: Candidates,
    *,
    temperature: float = 1.0,
    mask: str = "both",
    exclude: Tensor | None = None,
    weight: Tensor | None = None,
) -> Truth:
    """Eqs. 2 and 9 row by row, column by column; uses none of the library's code."""
    U, V, C = (x.double().tolist() for x in (users, positives.embeddings, negatives.embeddings))
    own_q, column_q = positives.log_q.double().tolist(), negatives.log_q.double().tolist()
    own_ids, column_ids = positives.item_ids.tolist(), negatives.item_ids.tolist()
    cached = [part.cached for part in negatives.parts for _ in range(len(part))]
    weights = [1.0] * len(U) if weight is None else weight.double().tolist()
    losses = []
    grad_u, grad_v, grad_c = ([[0.0] * len(U[0]) for _ in X] for X in (U, V, C))

    def score(u: list[float], v: list[float]) -> float:
        return math.fsum(a * b for a, b in zip(u, v, strict=True)) / temperature

    for r, u in enumerate(U):
        left_out = {
            "both": lambda j: column_ids[j] == own_ids[r],  # noqa: B023
            "batch": lambda j: column_ids[j] == own_ids[r] and not cached[j],  # noqa: B023
            "none": lambda j: j == r and column_ids[: len(U)] == own_ids,  # noqa: B023
        }[mask]
        own = score(u, V[r]) - own_q[r]
        terms = {
            j: score(u, v) - column_q[j]
            for j, v in enumerate(C)
            if not left_out(j) and not (exclude is not None and bool(exclude[r, j]))
        }
        peak = max([own, *terms.values()])
        Z = math.fsum(math.exp(x - peak) for x in [own, *terms.values()])
        losses.append(math.log(Z) + peak - own)
        p_own = math.exp(own - peak) / Z
        for k in range(len(u)):
            grad_v[r][k] += weights[r] * (p_own - 1) * u[k] / temperature
            grad_u[r][k] += weights[r] * (p_own - 1) * V[r][k] / temperature
            for j, x in terms.items():
                p = math.exp(x - peak) / Z
                grad_u[r][k] += weights[r] * p * C[j][k] / temperature
                grad_c[j][k] += weights[r] * p * u[k] / temperature
    as_tensor = [torch.tensor(x, dtype=torch.float64) for x in (losses, grad_u, grad_v, grad_c)]
    return Truth(*as_tensor)


@dataclass(frozen=True)
class Problem:
    """A batch, a live stream of further columns and a bank."""

    users: Tensor
    positives: Candidates
    extra: Candidates
    cached: Candidates

    @property
    def negatives(self) -> Candidates:
        """Batch, bank, extra: a cached part between two live ones."""
        return self.positives + self.cached + self.extra


def random_problem(
    seed: int = 0,
    *,
    B: int = 5,
    M: int = 7,
    extra: int = 3,
    d: int = 4,
    num_items: int = 9,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = True,
) -> Problem:
    """Few items, so that ids repeat in the batch, in the bank and between them."""
    generator = torch.Generator().manual_seed(seed)

    def columns(n: int, *, cached: bool = False) -> Candidates:
        vectors = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
        ids = torch.randint(1, num_items + 1, (n,), generator=generator)
        log_q = -3 * torch.rand(n, generator=generator, dtype=torch.float64)
        if dtype != torch.float64:
            log_q = log_q.float()
        vectors.requires_grad_(requires_grad and not cached)
        return Candidates(vectors, ids, log_q, cached=cached)

    users = torch.randn(B, d, generator=generator, dtype=torch.float64).to(dtype)
    return Problem(
        users.requires_grad_(requires_grad), columns(B), columns(extra), columns(M, cached=True)
    )


@pytest.fixture(scope="session")
def oracle() -> Callable[..., Truth]:
    return brute_force


@pytest.fixture(scope="session")
def problem() -> Callable[..., Problem]:
    return random_problem


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
