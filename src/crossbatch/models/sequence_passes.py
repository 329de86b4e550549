"""MIND and GRU4Rec with a way back of their own: see `passes`.

Only real positions of a history are read: half of a padded batch is padding.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from .gru4rec import GRU4Rec, ResetBeforeGRU
from .history_readers import history_reader, is_readable
from .mind import MIND
from .pass_parts import Arrays, Gradients
from .profile_pass import ProfilePass

if TYPE_CHECKING:
    from collections.abc import Callable

    from .passes import Backward
    from .two_tower import TwoTower

    Array = np.ndarray


class MINDPass:
    """Interests of the history's rows by routing, and of each user the one that is asked for.

    Args:
        model: One that `fits`.
    """

    def __init__(self, model: TwoTower) -> None:
        from . import readout_kernel, routing_kernel, rows_kernel

        self.model, self.tower = model, cast("MIND", model.user_tower)
        self.reader = history_reader(model)
        d, layer, bilinear = self.tower.dim, self.tower.layer, self.tower.bilinear
        weight = bilinear.weight.detach()
        parameters = [
            bilinear.weight,
            weight.new_zeros(d) if bilinear.bias is None else bilinear.bias,
            weight.new_empty(0, d) if layer is None else layer.weight,
            weight.new_empty(0) if layer is None else layer.bias,
        ]
        self.arrays, self.gradients = Arrays(parameters), Gradients(parameters)
        self._routing, self._readout, self._rows = routing_kernel, readout_kernel, rows_kernel

    @staticmethod
    def fits(model: TwoTower) -> bool:
        """Whether the tower is MIND with a fixed number of interests, and there is no profile."""
        tower = model.user_tower
        alone = type(tower) is MIND and not tower.adaptive and model.profile is None
        return alone and is_readable(model)

    def __call__(self, v: Tensor, history: Tensor, user_ids: Tensor) -> tuple[Tensor, Backward]:
        """User vectors `[B, d]` of histories `[B, L]` whose targets are `v` `[B, d]`."""
        tower, parameters = self.tower, self.arrays()
        ids, stops, positions = self.reader.by_history(history)
        items, give_back = self.reader.read(ids)
        logits = tower.logits_at(positions)
        B, K, d = len(stops), tower.num_interests, tower.dim
        raw = np.empty((B, K, d), dtype=np.float32)
        given = (items, stops, logits.numpy(), *parameters, raw)
        kept = self._routing.interests(tower.iterations, *given)
        interests, lengths = self._directions(raw.reshape(B * K, d))
        soft = tower.readout == "soft" and K > 1
        readout = self._soft if soft else self._hard
        u, back_to_interests = readout(interests.reshape(B, K, d), lengths, v.numpy())

        def backward(gradient: Array) -> Array | None:
            grad, chosen, of_target = back_to_interests(gradient)
            of_items = np.empty_like(items)
            given = (grad, chosen, items, stops, parameters[0], parameters[2], raw, *kept)
            self.gradients.write(partial(self._routing.gradients, *given, of_items))
            give_back(of_items)
            return of_target

        return torch.from_numpy(u), backward

    def _directions(self, vectors: Array) -> tuple[Array, Array]:
        """Vectors `[n, d]` as the model wants them, and the lengths they had."""
        lengths = np.empty(len(vectors), dtype=np.float32)
        if not self.model.normalize:
            return vectors, lengths
        directions = np.empty_like(vectors)
        self._rows.unit(vectors, directions, lengths)
        return directions, lengths

    def _hard(
        self, interests: Array, lengths: Array, target: Array
    ) -> tuple[Array, Callable[[Array], tuple[Array, Array, None]]]:
        u = np.empty_like(target)
        chosen = self._readout.best(interests, target, u)

        def backward(grad: Array) -> tuple[Array, Array, None]:
            if self.model.normalize:
                self._rows.unit_backward(grad, u, lengths[chosen], grad)
            return grad, chosen, None

        return u, backward

    def _soft(
        self, interests: Array, lengths: Array, target: Array
    ) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
        mixture = np.empty_like(target)
        weights, slopes = self._readout.mixed(interests, target, self.tower.power, mixture)
        u, sizes = self._directions(mixture)  # a mixture of unit vectors is shorter than one

        def backward(grad: Array) -> tuple[Array, Array, Array]:
            if self.model.normalize:
                self._rows.unit_backward(grad, u, sizes, grad)
            of_interests, of_target = np.empty_like(interests), np.empty_like(target)
            self._readout.back_from_mixed(
                grad, interests, target, weights, slopes, of_interests, of_target
            )
            rows = of_interests.reshape(-1, target.shape[1])
            if self.model.normalize:
                units = interests.reshape(rows.shape)
                self._rows.unit_backward(rows, units, lengths, rows)
            return rows, np.arange(len(rows)), of_target

        return u, backward


class GRUPass:
    """The state of a GRU after the last of the history's rows.

    Args:
        model: One that `fits`.
    """

    def __init__(self, model: TwoTower) -> None:
        from . import gru_kernel

        gru = cast("ResetBeforeGRU", cast("GRU4Rec", model.user_tower).gru)
        self.reader = history_reader(model)
        parameters = [gru.input_kernel, gru.gate_kernel, gru.candidate_kernel, gru.bias]
        self.arrays, self.gradients = Arrays(parameters), Gradients(parameters)
        self.hidden_size = gru.candidate_kernel.shape[0]
        self.profile = ProfilePass(model)
        self._gru = gru_kernel

    @staticmethod
    def fits(model: TwoTower) -> bool:
        """Whether the tower is a GRU of TF1's kind whose state is the user vector."""
        tower = model.user_tower
        plain = type(tower) is GRU4Rec and type(tower.gru) is ResetBeforeGRU
        whole = plain and tower.projection is None and ProfilePass.fits(model)
        return whole and is_readable(model)

    def __call__(self, v: Tensor, history: Tensor, user_ids: Tensor) -> tuple[Tensor, Backward]:
        """User vectors `[B, d]` of histories `[B, L]`."""
        ids, steps, order = self.reader.by_step(history)
        (items, give_back), parameters = self.reader.read(ids), self.arrays()
        states = np.zeros((len(history), self.hidden_size), dtype=np.float32)
        given = (items, steps, order, *parameters, states)
        kept = self._gru.states(*given)
        u, to_states = self.profile(states, user_ids)

        def backward(grad: Array) -> None:
            of_items = np.empty_like(items)
            given = (to_states(grad), items, steps, order, *parameters[:3], *kept)
            self.gradients.write(partial(self._gru.gradients, *given, of_items))
            give_back(of_items)

        return torch.from_numpy(u), backward
