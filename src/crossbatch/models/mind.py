"""MIND user tower: K interest capsules by behaviour-to-interest dynamic routing.

tower = MIND(64, interests=4)
interests = tower(history_vectors, mask)        # [B, 4, 64]
"""

import math

import torch
from torch import Tensor, nn

from .checks import check_at_least_one, check_choice
from .dense import mlp
from .readout import READOUTS
from .routing import route

ROUTINGS = ("random", "fixed")
FIXED_POSITIONS = 256


def truncated_normal(rows: int, columns: int, generator: torch.Generator | None = None) -> Tensor:
    """`[rows, columns]` draws from the standard normal distribution, cut off at ±2."""
    inside = math.erf(math.sqrt(2))  # probability of being within two deviations
    draws = torch.empty(rows, columns).uniform_(-inside, inside, generator=generator)
    return draws.erfinv_().mul_(math.sqrt(2))


class MIND(nn.Module):
    """Interest capsules of the history through one shared bilinear map, then a dense ReLU layer.

    Args:
        dim: Width d.
        interests: Number K of interests.
        iterations: Rounds of routing.
        routing: First routing logits: `"random"` draws them afresh for every history from a normal
            distribution truncated at two deviations, `"fixed"` uses one such draw for all.
        readout: `"hard"` trains the interest that scores the positive highest, `"soft"` a mixture
            with label-aware attention (the original paper).
        power: Sharpness of the soft readout.
        relu: Whether a dense layer with ReLU follows the capsules (ComiRec's setting for Books).
        bias: Whether the bilinear map has a bias.
        adaptive: Whether a history of n items has only max(1, min(K, log2 n)) interests, as in the
            original paper; the places of the others then repeat the first interest, which leaves
            the maximum over interests as it is.
        stochastic_evaluation: Whether random routing is random in evaluation too.
        routing_seed: Seed of the fixed logits.

    Deviation: ComiRec draws routing logits in evaluation as well, so that two evaluations of one
    model differ. Here evaluation uses the fixed logits unless `stochastic_evaluation` is set.
    """

    fixed_logits: Tensor

    def __init__(
        self,
        dim: int,
        *,
        interests: int = 4,
        iterations: int = 3,
        routing: str = "random",
        readout: str = "hard",
        power: float = 1.0,
        relu: bool = True,
        bias: bool = True,
        adaptive: bool = False,
        stochastic_evaluation: bool = False,
        routing_seed: int = 0,
    ) -> None:
        super().__init__()
        check_at_least_one(interests=interests, iterations=iterations)
        check_choice("routing", routing, ROUTINGS)
        check_choice("readout", readout, READOUTS)
        self.dim, self.num_interests, self.iterations = dim, interests, iterations
        self.routing, self.stochastic_evaluation = routing, stochastic_evaluation
        self.readout, self.power, self.adaptive = readout, power, adaptive
        self.bilinear = nn.Linear(dim, dim, bias=bias)
        nn.init.xavier_uniform_(self.bilinear.weight)
        if bias:  # as TF1 initialises a vector that was given no initialiser
            limit = math.sqrt(6 / (2 * dim))
            nn.init.uniform_(self.bilinear.bias, -limit, limit)
        self.dense = mlp(dim, (), dim, relu=True) if relu else nn.Identity()
        generator = torch.Generator().manual_seed(routing_seed)
        self.register_buffer(
            "fixed_logits", truncated_normal(FIXED_POSITIONS, interests, generator)
        )

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Interests `[B, K, d]` of histories `[B, L, d]` with mask `[B, L]`."""
        logits = self._first_logits(mask)  # [B, K, L]
        if not self.adaptive:
            capsules = route(history, mask, logits, self.bilinear, self.iterations)
        else:
            absent = self._absent(mask)
            logits = logits.masked_fill(absent, -torch.inf)
            capsules = route(history, mask, logits, self.bilinear, self.iterations)
            capsules = torch.where(absent, capsules[:, :1], capsules)
        interests: Tensor = self.dense(capsules)
        return interests

    def select(self, interests: Tensor, target: Tensor) -> Tensor:
        """The vector `[B, d]` of interests `[B, K, d]` that answers for targets `[B, d]`."""
        return READOUTS[self.readout](interests, target, self.power)

    def _first_logits(self, mask: Tensor) -> Tensor:
        B, L = mask.shape
        fresh = self.routing == "random" and (self.training or self.stochastic_evaluation)
        if not fresh:
            positions = torch.arange(L, device=mask.device) % FIXED_POSITIONS
            return self.fixed_logits[positions].T.expand(B, -1, -1)
        # Drawn for real positions only: padding changes neither the draws nor what follows them.
        real = mask.flatten().nonzero().squeeze(1)
        logits = self.fixed_logits.new_zeros(B * L, self.num_interests)
        logits[real] = truncated_normal(len(real), self.num_interests).to(logits)
        return logits.view(B, L, -1).transpose(1, 2)

    def _absent(self, mask: Tensor) -> Tensor:
        """True `[B, K, 1]` for interests that a history is too short to have."""
        available = mask.sum(dim=1).clamp_min(1).log2().floor().clamp_min(1)  # [B]
        order = torch.arange(self.num_interests, device=mask.device)
        return (order >= available.unsqueeze(1)).unsqueeze(2)
