"""Vectors of a few items and a user, to tell whether towers are still those that were trained.

The code of towers that a recipe names by import path may change between training and evaluation,
while their weights still fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from crossbatch.queries import weights_of

if TYPE_CHECKING:
    from torch import Tensor

NUM_ITEMS = 8
TOLERANCE = 1e-3  # of the largest number: far above float rounding
PREFIX = "sample."


def sample_vectors(model: Any, num_items: int) -> dict[str, Tensor]:
    """Vectors `[n, d]` of the first items, and of a user `[1, K, d]` with them as history.

    The model is in evaluation mode meanwhile; its modes and the random state are restored.
    """
    device = next((parameter.device for parameter in model.parameters()), None)
    ids = torch.arange(1, min(NUM_ITEMS, num_items) + 1, device=device)
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        torch.manual_seed(0)
        try:
            model.eval()
            rows = [torch.zeros_like(ids[:1])] * (
                2 if getattr(model, "reads_context", False) else 1
            )
            users = weights_of(model.users(ids.unsqueeze(0), *rows))[0]
            found = {"items": model.items(ids), "users": users}
        finally:
            for module, mode in modes:
                module.training = mode
    return {f"{PREFIX}{name}": vectors.float().contiguous() for name, vectors in found.items()}


def are_same(towers: Any, tensors: dict[str, Tensor], num_items: int) -> bool:
    """Whether towers give the vectors that `tensors` hold; true where there are none."""
    if not any(name.startswith(PREFIX) for name in tensors):
        return True
    for name, found in sample_vectors(towers, num_items).items():
        expected = tensors.get(name)
        if expected is None or found.shape != expected.shape:
            return False
        scale = max(float(expected.abs().max()), 1e-12)
        if not float((found.cpu() - expected).abs().max()) <= TOLERANCE * scale:  # NaN neither
            return False
    return True
