"""Label-aware readout: which of a user's K interests answers for the item at hand.

u = READOUTS["hard"](interests, target, power=1.0)      # [B, d]
"""

from collections.abc import Callable

import torch
from torch import Tensor

from crossbatch.queries import best_interest


def hard_readout(interests: Tensor, target: Tensor, power: float = 1.0) -> Tensor:
    """The interest with the largest score for the target.

    Raising scores to a power before the choice, as some code does, would pick the most negative
    score for an even one and overflow for a large one; the order is all that matters here.

    Args:
        interests: `[B, K, d]`.
        target: `[B, d]`.
        power: Of no effect.

    Returns:
        `[B, d]`.
    """
    del power
    return best_interest(interests, target)


def soft_readout(interests: Tensor, target: Tensor, power: float = 1.0) -> Tensor:
    """Attention over the interests with weights softmax(sign(s)·|s|^power), s the target's scores.

    Copies of the first interest (which stand in for interests a user does not have) count once.

    Args:
        interests: `[B, K, d]`.
        target: `[B, d]`.
        power: Sharpness; the larger, the closer to the hard readout.

    Returns:
        `[B, d]`.
    """
    scores = _scores(interests, target)
    # The cap keeps |s|^100 finite; float32 ends at e^88.
    size = (power * scores.abs().clamp_min(1e-12).log()).clamp_max(80.0).exp()
    logits = scores if power == 1 else scores.sign() * size
    copies = (interests[:, 1:] == interests[:, :1]).all(dim=-1)  # [B, K-1]
    logits = torch.cat([logits[:, :1], logits[:, 1:].masked_fill(copies, -torch.inf)], dim=1)
    return torch.bmm(logits.softmax(dim=1).unsqueeze(1), interests).squeeze(1)


def _scores(interests: Tensor, target: Tensor) -> Tensor:
    return torch.bmm(interests, target.unsqueeze(2).to(interests.dtype)).squeeze(2)  # [B, K]


READOUTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "hard": hard_readout,
    "soft": soft_readout,
}
