"""`ProfilePass`: what comes after a user tower of one interest, and back; see `passes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .content_passes import ColumnsPass
from .pass_parts import Ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .two_tower import TwoTower

    Array = np.ndarray


class ProfilePass:
    """The profile joined to user vectors, if there is any, and unit vectors, if they are asked for.

    Args:
        model: One that `fits`.
    """

    def __init__(self, model: TwoTower) -> None:
        self.columns = None if model.profile is None else ColumnsPass(None, model.profile)
        self.ending = Ending(None if model.profile is None else model.fuse, model.normalize)
        self.absent = model.profile is None and not model.normalize

    @staticmethod
    def fits(model: TwoTower) -> bool:
        """Whether the profile is of the usual kinds of content."""
        return ColumnsPass.fits(model.profile)

    def __call__(self, vectors: Array, user_ids: Tensor) -> tuple[Array, Callable[[Array], Array]]:
        """User vectors `[B, d]` of a tower's output `[B, d]`; and back to the gradient of that."""
        if self.absent:
            return vectors, lambda gradient: gradient
        if self.columns is None:
            return self.ending(vectors)
        d, unknown = vectors.shape[1], (user_ids < 0).numpy()
        profile, to_profile = self.columns(user_ids.clamp_min(0))
        profile[unknown] = 0
        finished, back = self.ending(np.concatenate([vectors, profile], axis=1))

        def backward(gradient: Array) -> Array:
            joined = back(gradient)
            of_profile = joined[:, d:].copy()
            of_profile[unknown] = 0
            to_profile(of_profile)
            return joined[:, :d].copy()

        return finished, backward
