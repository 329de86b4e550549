"""Vectors of length 1, safe at zero."""

import torch
from torch import Tensor


def unit_vectors(vectors: Tensor) -> Tensor:
    """`vectors` `[*, d]` at length 1; zero vectors stay zero and pass no gradient.

    `torch.nn.functional.normalize` would hand a zero vector a gradient of 1 / eps. Half precision
    becomes float32, because a rounded unit vector no longer has length 1.
    """
    if vectors.dtype in (torch.bfloat16, torch.float16):
        vectors = vectors.float()
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    tiny = norm < 1e-8
    return torch.where(tiny, 0.0, vectors / norm.masked_fill(tiny, 1.0))
