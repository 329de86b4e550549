"""Embedding stability: how far item vectors move, and what that does to the user-side gradient.

feature_drift(vectors_now, vectors_before).mean           # Eq. 5
gradient_error(users, parameters, fresh, cached).bound    # the paper's lemma
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Drift:
    """Feature drift between two states of the item tower."""

    total: float  # Σ over items, as the paper plots it: grows with the catalogue
    mean: float  # per item
    relative: float  # total / Σ ‖now‖: comparable between models and catalogues


def feature_drift(now: Tensor, before: Tensor) -> Drift:
    """Return D(I, t; Δt) = Σ_I ‖g(I; θ_t) − g(I; θ_{t−Δt})‖₂, Eq. 5, and its normalised forms.

    Args:
        now: `[N, d]` vectors of some or all items at step t (without the padding row).
        before: `[N, d]` vectors of the same items Δt steps earlier.
    """
    if now.dim() != 2 or now.shape != before.shape:
        raise ValueError(
            f"now and before must be [N, d] of the same items, "
            f"got {list(now.shape)} and {list(before.shape)}"
        )
    with torch.no_grad():
        total = float((now.double() - before.double()).norm(dim=1).sum())
        length = float(now.double().norm(dim=1).sum())
    return Drift(
        total=total,
        mean=total / len(now) if len(now) else 0.0,
        relative=total / length if length else (0.0 if total == 0 else float("inf")),
    )


@dataclass(frozen=True, slots=True)
class GradientError:
    """Both sides of the lemma for B users and N items; all norms are squared, as in its proof."""

    deviation: Tensor  # [B, N] ‖∂ô/∂θ − ∂o/∂θ‖², measured
    drift: Tensor  # [N] ‖v̂ − v‖², the lemma's ε for the item
    jacobian: Tensor  # [B] ‖∂u/∂θ‖² (spectral), the lemma's C for the user
    gradient: Tensor  # [B, N] ‖∂o/∂θ‖², what the deviation is small or large against

    @property
    def bound(self) -> Tensor:
        """`[B, N]` C ε: what the deviation may not exceed."""
        return self.jacobian[:, None] * self.drift

    @property
    def constant(self) -> Tensor:
        """`[B, N]` deviation / ε, 0 at ε = 0: the C each pair needs. The paper reports C ≤ 1."""
        return self.deviation / self.drift.where(self.drift > 0, 1.0)


def gradient_error(
    users: Tensor, parameters: Iterable[Tensor], fresh: Tensor, cached: Tensor
) -> GradientError:
    """Measure how a stale item vector changes the gradient of a logit by the user-side parameters.

    With o = uᵀv and J = ∂u/∂θ, ∂ô/∂θ − ∂o/∂θ = (v̂ − v)ᵀ J, so all items follow from the `[d, d]`
    matrix G = J Jᵀ of the user: the deviation is δᵀ G δ and the bound λ_max(G) ‖δ‖². The lemma says
    nothing about the gradient of the item side.

    Args:
        users: `[B, d]` user vectors with their graph.
        parameters: The user side's parameters θ. Embedding tables should have sparse gradients: a
            dense one costs d copies of the table.
        fresh: `[N, d]` item vectors v of the present item tower.
        cached: `[N, d]` vectors v̂ of the same items, as the bank holds them.
    """
    if fresh.shape != cached.shape or fresh.dim() != 2 or users.shape[1:] != fresh.shape[1:]:
        raise ValueError(
            "users, fresh and cached must be [B, d], [N, d] and [N, d], "
            f"got {list(users.shape)}, {list(fresh.shape)} and {list(cached.shape)}"
        )
    parameters = list(parameters)
    grams = torch.stack([jacobian_gram(user, parameters) for user in users])  # [B, d, d]
    now = fresh.detach().double()  # [N, d]
    delta = cached.detach().double() - now
    return GradientError(
        deviation=torch.einsum("nd,bde,ne->bn", delta, grams, delta),
        drift=delta.square().sum(dim=1),
        jacobian=torch.linalg.eigvalsh(grams)[:, -1],
        gradient=torch.einsum("nd,bde,ne->bn", now, grams, now),
    )


def jacobian_gram(user: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """Return J Jᵀ `[d, d]` in float64, J = ∂user/∂parameters, for one user vector `[d]`."""
    parameters = list(parameters)
    rows: list[list[Tensor | None]] = []  # [d][parameter], flattened gradients
    for component in user:
        grads = torch.autograd.grad(component, parameters, retain_graph=True, allow_unused=True)
        rows.append([_flat(grad) for grad in grads])
    d = len(user)
    gram = torch.zeros(d, d, dtype=torch.float64, device=user.device)
    for columns in zip(*rows, strict=True):
        used = [column for column in columns if column is not None]
        if used:
            jacobian = torch.stack(used)  # all components share one graph: used by all or by none
            gram += jacobian @ jacobian.T
    return gram


def _flat(grad: Tensor | None) -> Tensor | None:
    """Flatten a gradient; of a sparse one only the touched rows, the same for each component."""
    if grad is None:
        return None
    values = grad.coalesce().values() if grad.is_sparse else grad
    return values.flatten().double()
