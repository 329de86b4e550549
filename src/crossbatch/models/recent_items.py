"""RecentItems user tower: the items of the history are the user, each a query of its own."""

import math

import torch
from torch import Tensor, nn

from crossbatch.queries import Queries

from .history import AGES, History
from .layers import identity_layer, input_width

DECAY = 0.3  # by which a query's log-weight falls with each newer item, at the start


class RecentItems(nn.Module):
    """Every item of the history is a weighted query (see `Queries`); nothing is pooled.

    A query is a linear map of its item's vector. Its log-weight depends on the item's age, the
    number of items after it, and is learned. So items are found that go with *one* of the recent
    items, as in a neighbourhood model; a mean looks for items that go with all of them.

    Args:
        dim: Width d.
        input_dim: Width of the history's vectors; d unless given.
        temperature: Divides the queries. The softmax takes the scores as they are, so this is the
            temperature of the loss too.
        learn_temperature: Whether the temperature is a parameter that starts there.
    """

    begins_as_identity = True
    log_temperature: Tensor

    def __init__(
        self,
        dim: int,
        *,
        input_dim: int | None = None,
        temperature: float = 0.1,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {temperature}")
        self.dim, self.input_dim = dim, input_width(input_dim, dim)
        self.layer = identity_layer(self.input_dim, dim)
        self.log_weights = nn.Parameter(-DECAY * torch.arange(AGES))  # of each age
        log_temperature = torch.tensor(math.log(temperature))
        if learn_temperature:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)

    def forward(self, history: History) -> Queries:
        """Queries `[B, L, d]` of histories, not yet divided by the temperature.

        A user without a history has one query, of zeros.
        """
        vectors, mask = history.padded(self.layer)  # [B, L, d], [B, L]
        age = mask.flip(1).cumsum(dim=1).flip(1) - 1  # [B, L], counted over real items
        log_weights = self.log_weights[age.clamp(0, AGES - 1)]
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        present = mask | (first & ~mask.any(dim=1, keepdim=True))
        return Queries(vectors, log_weights.masked_fill(~present, -math.inf).log_softmax(dim=1))

    def divided(self, queries: Queries) -> Queries:
        """The queries divided by the temperature."""
        return Queries(queries.vectors / self.log_temperature.exp(), queries.log_weights)
