"""GRU4Rec user tower: the state of a GRU after the last item of the history."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from crossbatch.kernels.gru import gru_states, padded_states
from crossbatch.kernels.ragged import lengths, pad

from .history import History
from .layers import check_at_least_one, dense_layer, input_width


class ResetBeforeGRU(nn.Module):
    """One GRU layer as TF1's `GRUCell` has it: gates on the state before the recurrent product.

    Kernels are Glorot-uniform on the shape of input and state together, gate biases 1, candidate
    biases 0.
    """

    def __init__(self, dim: int, hidden_size: int) -> None:
        super().__init__()
        h = hidden_size
        self.input_kernel = nn.Parameter(torch.empty(dim, 3 * h))  # r, z, c
        self.gate_kernel = nn.Parameter(torch.empty(h, 2 * h))
        self.candidate_kernel = nn.Parameter(torch.empty(h, h))
        self.bias = nn.Parameter(torch.zeros(3 * h))
        gate_limit, candidate_limit = _glorot_limits(dim, h)
        nn.init.uniform_(self.input_kernel[:, : 2 * h], -gate_limit, gate_limit)
        nn.init.uniform_(self.input_kernel[:, 2 * h :], -candidate_limit, candidate_limit)
        nn.init.uniform_(self.gate_kernel, -gate_limit, gate_limit)
        nn.init.uniform_(self.candidate_kernel, -candidate_limit, candidate_limit)
        nn.init.ones_(self.bias[: 2 * h])

    def forward(self, items: Tensor, stops: Tensor) -> Tensor:
        """State `[B, h]` after the last item of each history."""
        with torch.autocast(items.device.type, enabled=False):  # rounding adds up over steps
            items = items.to(self.input_kernel.dtype)
            return gru_states(items, stops, *self.parameters())

    def padded(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """The same of histories `[B, L, w]` with mask `[B, L]`: fixed shapes, for graph export."""
        return padded_states(vectors, mask, *self.parameters())


class ResetAfterGRU(nn.Module):
    """`torch.nn.GRU` (reset after the product, two biases) with the same initialisation."""

    def __init__(self, dim: int, hidden_size: int) -> None:
        super().__init__()
        h = hidden_size
        self.gru = nn.GRU(dim, h, batch_first=True)
        gate_limit, candidate_limit = _glorot_limits(dim, h)
        input_kernel, kernel, input_bias, bias = self.gru.parameters()
        for weight in (input_kernel, kernel):
            nn.init.uniform_(weight[: 2 * h], -gate_limit, gate_limit)
            nn.init.uniform_(weight[2 * h :], -candidate_limit, candidate_limit)
        nn.init.zeros_(bias)
        nn.init.zeros_(input_bias)
        nn.init.ones_(input_bias[: 2 * h])

    def forward(self, items: Tensor, stops: Tensor) -> Tensor:
        """State `[B, h]` after the last item of each history."""
        sizes = lengths(stops)
        # A packed sequence has at least one item; the state of an empty history is reset after it.
        packed = pack_padded_sequence(
            pad(items, stops)[0], sizes.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False
        )
        final: Tensor = self.gru(packed)[1]
        return final.squeeze(0).masked_fill((sizes == 0).unsqueeze(1), 0.0)

    def padded(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """The same of histories `[B, L, w]` with mask `[B, L]`: fixed shapes, for graph export."""
        # By hand, because exporting `nn.GRU` warns of attributes that it assigns to itself.
        input_kernel, kernel, input_bias, bias = self.gru.parameters()
        projected = functional.linear(vectors, input_kernel, input_bias)  # [B, L, 3h]
        state = vectors.new_zeros(vectors.shape[0], self.gru.hidden_size)
        for t in range(vectors.shape[1]):
            x_r, x_z, x_c = projected[:, t].chunk(3, dim=-1)
            h_r, h_z, h_c = functional.linear(state, kernel, bias).chunk(3, dim=-1)
            candidate = (x_c + (x_r + h_r).sigmoid() * h_c).tanh()
            moved = torch.lerp(candidate, state, (x_z + h_z).sigmoid())
            state = torch.where(mask[:, t, None], moved, state)
        return state


class GRU4Rec(nn.Module):
    """State of one GRU layer after the last real item, which is the user vector as it stands.

    Args:
        dim: Width d.
        input_dim: Width of the history's vectors; d unless given.
        hidden_size: Units of the GRU; where this is not d, a linear layer follows.
        reset_before: Whether the reset gate acts on the state before the recurrent product (TF1,
            hence ComiRec) or after it (cuDNN and `torch.nn.GRU`).
    """

    def __init__(
        self,
        dim: int,
        *,
        input_dim: int | None = None,
        hidden_size: int | None = None,
        reset_before: bool = True,
    ) -> None:
        super().__init__()
        hidden_size = dim if hidden_size is None else hidden_size
        check_at_least_one(hidden_size=hidden_size)
        self.dim, self.input_dim = dim, input_width(input_dim, dim)
        layer = ResetBeforeGRU if reset_before else ResetAfterGRU
        self.gru: ResetBeforeGRU | ResetAfterGRU = layer(self.input_dim, hidden_size)
        self.projection = None if hidden_size == dim else dense_layer(hidden_size, dim)

    def forward(self, history: History) -> Tensor:
        """User vectors `[B, 1, d]`."""
        if torch.compiler.is_exporting():
            state = self.gru.padded(*history.padded())
        else:
            state = self.gru(history.items, history.stops)
        vectors: Tensor = state if self.projection is None else self.projection(state)
        return vectors.unsqueeze(1)


def _glorot_limits(dim: int, h: int) -> tuple[float, float]:
    """Limits of the gates' kernel `[dim + h, 2h]` and of the candidate's `[dim + h, h]`."""
    return math.sqrt(6 / (dim + 3 * h)), math.sqrt(6 / (dim + 2 * h))
