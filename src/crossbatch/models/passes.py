"""Towers with a way back of their own: what autograd's graph would do, by two compiled calls.

    vectors, backward = ItemsPass(model)(item_ids)      # [N, d]
    backward(gradient)                                  # to `.grad` and to the tables' keepers

At a batch of 128, building a graph and walking it costs as much as the towers' arithmetic. Towers
that have no compiled form go through autograd behind the same interface (`GraphPass`), so that
whoever trains need not know which is which. Types are compared exactly: a tower that somebody has
derived from ours may do something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from .history_readers import history_reader, is_readable
from .item_passes import ItemsPass
from .pass_parts import Ending
from .profile_pass import ProfilePass
from .youtube_dnn import YouTubeDNN

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from .two_tower import TwoTower

    Array = np.ndarray
    # From the gradient of the result to that of the item vectors it was computed from, if any.
    Backward = Callable[[Array], Array | None]
    Pass = Callable[..., tuple[Tensor, Backward]]


def items_pass(model: TwoTower) -> Pass:
    """`model.items` with its way back."""
    return ItemsPass(model) if ItemsPass.fits(model) else GraphPass(model.items)


def users_pass(model: TwoTower) -> Pass:
    """The user side of `model.forward`, a function of item vectors, history and user ids."""
    from .sequence_passes import GRUPass, MINDPass

    for kind in (UsersPass, MINDPass, GRUPass):
        if kind.fits(model):
            return kind(model)
    return GraphPass(lambda v, history, users: model.select(model.users(history, users), v))


class GraphPass:
    """Any function of tensors, with autograd's way back.

    Args:
        function: Of item vectors or ids, and more.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def __call__(self, items: Tensor, *more: Tensor) -> tuple[Tensor, Backward]:
        """The result as a constant, and the way back to the leaves of its graph."""
        leaf = items.detach()
        if leaf.is_floating_point():
            leaf.requires_grad_()
        with torch.enable_grad():
            result = self.function(leaf, *more)

        def backward(gradient: Array) -> Array | None:
            if result.requires_grad:  # not where everything is frozen
                torch.autograd.backward(result, torch.from_numpy(gradient))
            return None if leaf.grad is None else leaf.grad.numpy()

        return result.detach(), backward


class UsersPass:
    """The mean of the history's vectors through the layers of a `YouTubeDNN`.

    Args:
        model: One that `fits`.
    """

    def __init__(self, model: TwoTower) -> None:
        self.reader = history_reader(model)
        self.ending = Ending(cast("YouTubeDNN", model.user_tower).layers, normalize=False)
        self.profile = ProfilePass(model)

    @staticmethod
    def fits(model: TwoTower) -> bool:
        """Whether a user is the mean of the history's vectors, through layers."""
        ours = type(model.user_tower) is YouTubeDNN
        return ours and is_readable(model) and ProfilePass.fits(model)

    def __call__(self, v: Tensor, history: Tensor, user_ids: Tensor) -> tuple[Tensor, Backward]:
        """User vectors `[B, d]` of histories `[B, L]`."""
        mean, give_back = self.reader.mean(history)
        vectors, to_mean = self.ending(mean)
        u, to_vectors = self.profile(vectors, user_ids)
        return torch.from_numpy(u), lambda gradient: give_back(to_mean(to_vectors(gradient)))
