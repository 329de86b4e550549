from collections.abc import Callable

import pytest
import torch
from torch import Tensor

HistoryMaker = Callable[..., Tensor]


@pytest.fixture
def make_history() -> HistoryMaker:
    """Random right-padded histories `[B, L]`; the lengths cover 0, 1 and L."""

    def make(B: int = 8, L: int = 6, num_items: int = 50, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        history = torch.randint(1, num_items + 1, (B, L), generator=generator)
        lengths = torch.randint(0, L + 1, (B,), generator=generator)
        lengths[:3] = torch.tensor([L, 1, 0])
        history[torch.arange(L) >= lengths[:, None]] = 0
        return history

    return make
