"""MIND user tower: K interest capsules by behaviour-to-interest dynamic routing.

tower = MIND(64, interests=4)
interests = tower(history)             # [B, 4, 64]
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from crossbatch.kernels.routing import padded_interests, routed_interests

from .history import History
from .layers import READOUTS, check_at_least_one, check_choice, input_width, mlp

ROUTINGS = ("random", "fixed")
BIAS_STARTS = ("glorot", "zeros")
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
        input_dim: Width of the history's vectors; d unless given.
        interests: Number K of interests.
        iterations: Rounds of routing.
        routing: First routing logits: `"random"` draws them afresh for every history from a normal
            distribution truncated at two deviations, `"fixed"` uses one such draw for all.
        readout: `"hard"` trains the interest that scores the positive highest, `"soft"` a mixture
            with label-aware attention (the original paper).
        power: Sharpness of the soft readout.
        relu: Whether a dense layer with ReLU follows the capsules (ComiRec's setting for Books).
        bias: Whether the bilinear map has a bias.
        bias_start: How that bias begins: `"glorot"` as in TF1, a hundred times the size of a mapped
            item of a large catalogue, so that all users begin as one vector, or `"zeros"`.
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
        input_dim: int | None = None,
        interests: int = 4,
        iterations: int = 3,
        routing: str = "random",
        readout: str = "hard",
        power: float = 1.0,
        relu: bool = True,
        bias: bool = True,
        bias_start: str = "glorot",
        adaptive: bool = False,
        stochastic_evaluation: bool = False,
        routing_seed: int = 0,
    ) -> None:
        super().__init__()
        check_at_least_one(interests=interests, iterations=iterations)
        check_choice("routing", routing, ROUTINGS)
        check_choice("readout", readout, READOUTS)
        check_choice("bias_start", bias_start, BIAS_STARTS)
        self.dim, self.input_dim = dim, input_width(input_dim, dim)
        self.num_interests, self.iterations = interests, iterations
        self.routing, self.stochastic_evaluation = routing, stochastic_evaluation
        self.readout, self.power, self.adaptive = readout, power, adaptive
        self.bilinear = nn.Linear(self.input_dim, dim, bias=bias)
        nn.init.xavier_uniform_(self.bilinear.weight)
        if bias:  # TF1 treats a vector that was given no initialiser like a kernel
            limit = math.sqrt(6 / (2 * dim)) if bias_start == "glorot" else 0.0
            nn.init.uniform_(self.bilinear.bias, -limit, limit)
        self.dense = mlp(dim, (), dim, relu=True) if relu else nn.Identity()
        generator = torch.Generator().manual_seed(routing_seed)
        self.register_buffer(
            "fixed_logits", truncated_normal(FIXED_POSITIONS, interests, generator)
        )

    def forward(self, history: History) -> Tensor:
        """Interests `[B, K, d]`."""
        absent = self._absent(history.lengths) if self.adaptive else None
        exporting = torch.compiler.is_exporting()
        interests = (self._padded if exporting else self._ragged)(history, absent)
        return interests if absent is None else torch.where(absent, interests[:, :1], interests)

    def _ragged(self, history: History, absent: Tensor | None) -> Tensor:
        items, stops = history
        logits = self._random_logits(items.shape[0])  # [P, K]
        if logits is None or absent is not None:
            rows, sizes = torch.arange(len(stops), device=stops.device), history.lengths
            of_item = rows.repeat_interleave(sizes, output_size=len(items))  # [P] its history
        if logits is None:
            positions = torch.arange(len(items), device=stops.device) - (stops - sizes)[of_item]
            logits = self.fixed_logits[positions % FIXED_POSITIONS]
        if absent is not None:
            logits = logits.masked_fill(absent[of_item, :, 0], -torch.inf)
        return routed_interests(items, stops, logits, self.iterations, *self._weights())

    def _padded(self, history: History, absent: Tensor | None) -> Tensor:
        vectors, mask = history.padded()
        logits = self._random_logits(mask.shape[1])
        if logits is None:
            positions = torch.arange(mask.shape[1], device=mask.device)
            logits = self.fixed_logits[positions % FIXED_POSITIONS]
        logits = logits.T.expand(mask.shape[0], -1, -1)  # [B, K, L]
        if absent is not None:
            logits = logits.masked_fill(absent, -torch.inf)
        return padded_interests(vectors, mask, logits, self.iterations, *self._weights())

    def select(self, interests: Tensor, target: Tensor) -> Tensor:
        """The vector `[B, d]` of interests `[B, K, d]` that answers for targets `[B, d]`."""
        return READOUTS[self.readout](interests, target, self.power)

    def _weights(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """The shared map of items and the layer behind the capsules, each with its bias."""
        dense: Any = (None, None)
        if isinstance(self.dense, nn.Sequential):
            layer = cast("nn.Linear", self.dense[0])
            dense = (layer.weight, layer.bias)
        return self.bilinear.weight, self.bilinear.bias, *dense

    def _random_logits(self, num_items: int) -> Tensor | None:
        """Fresh routing logits `[P, K]` of so many items; None where the fixed ones are used."""
        if self.routing == "random" and (self.training or self.stochastic_evaluation):
            return truncated_normal(num_items, self.num_interests).to(self.fixed_logits)
        return None

    def _absent(self, sizes: Tensor) -> Tensor:
        """True `[B, K, 1]` for interests that a history of `sizes` `[B]` is too short to have."""
        available = sizes.clamp_min(1).log2().floor().clamp_min(1)  # [B]
        order = torch.arange(self.num_interests, device=sizes.device)
        return (order >= available.unsqueeze(1)).unsqueeze(2)
