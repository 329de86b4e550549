"""GRU4Rec user tower: the state of a GRU after the last item of the history."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from .checks import check_at_least_one, input_width
from .dense import dense_layer
from .gru_scan import gru_scan, gru_states
from .routing import can_compile


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

    def forward(self, packed: PackedSequence) -> Tensor:
        """State `[B, h]` after the last item of each sequence."""
        with torch.autocast(packed.data.device.type, enabled=False):  # rounding adds up over steps
            items = packed.data.to(self.input_kernel.dtype)
            if can_compile(items):
                kernels = (self.input_kernel, self.gate_kernel, self.candidate_kernel, self.bias)
                order = packed.sorted_indices
                assert order is not None  # of sequences in any order
                return gru_states(items, packed.batch_sizes, order, *kernels)
            projected = torch.addmm(self.bias, items, self.input_kernel)
            final = gru_scan(
                projected, self.gate_kernel, self.candidate_kernel, packed.batch_sizes.tolist()
            )
        return final[packed.unsorted_indices]

    def unrolled(self, history: Tensor, mask: Tensor) -> Tensor:
        """The same over every position, real or not: fixed shapes, for graph export."""
        projected = history @ self.input_kernel + self.bias  # [B, L, 3h]
        x_gates, x_candidate = projected.tensor_split([self.gate_kernel.shape[1]], dim=-1)
        state = history.new_zeros(history.shape[0], self.gate_kernel.shape[0])
        for t in range(history.shape[1]):
            reset, update = (x_gates[:, t] + state @ self.gate_kernel).sigmoid().chunk(2, dim=-1)
            candidate = (x_candidate[:, t] + (reset * state) @ self.candidate_kernel).tanh()
            moved = update * state + (1 - update) * candidate
            state = torch.where(mask[:, t, None], moved, state)
        return state


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

    def forward(self, packed: PackedSequence) -> Tensor:
        """State `[B, h]` after the last item of each sequence."""
        final: Tensor = self.gru(packed)[1]
        return final.squeeze(0)

    def unrolled(self, history: Tensor, mask: Tensor) -> Tensor:
        """The same over every position, real or not: fixed shapes, for graph export."""
        # By hand, because exporting `nn.GRU` warns of attributes that it assigns to itself.
        input_kernel, kernel, input_bias, bias = self.gru.parameters()
        projected = functional.linear(history, input_kernel, input_bias)  # [B, L, 3h]
        state = history.new_zeros(history.shape[0], self.gru.hidden_size)
        for t in range(history.shape[1]):
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

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """User vectors `[B, 1, d]` of histories `[B, L, w]` with mask `[B, L]`."""
        lengths = mask.sum(dim=1)
        if torch.compiler.is_exporting():
            state = self.gru.unrolled(history, mask)
        else:
            # A packed sequence has at least one item; the state of an empty history is reset below.
            filled = lengths.clamp_min(1).cpu()
            state = self.gru(
                pack_padded_sequence(history, filled, batch_first=True, enforce_sorted=False)
            )
        state = state.masked_fill((lengths == 0).unsqueeze(1), 0.0)
        vectors: Tensor = state if self.projection is None else self.projection(state)
        return vectors.unsqueeze(1)


def _glorot_limits(dim: int, h: int) -> tuple[float, float]:
    """Limits of the gates' kernel `[dim + h, 2h]` and of the candidate's `[dim + h, h]`."""
    return math.sqrt(6 / (dim + 3 * h)), math.sqrt(6 / (dim + 2 * h))
