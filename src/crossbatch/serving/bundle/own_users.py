"""The user side of models that are not built from a recipe's own towers.

Their user vectors come from a graph (`core_graph`) in a bundle, or from the model itself in a run.
A model that has `describe` and `interests`, as `TwoTower` does, is asked with the stored vectors of
the items of a history. Any other is asked with their ids: what is stored for each item is its id.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossbatch.models import TwoTower
from crossbatch.queries import Queries, weights_of
from crossbatch.serving.bundle.core_graph import BLOCK, GraphData, trace
from crossbatch.serving.bundle.graph import MULTI, AllRows
from crossbatch.serving.bundle.model_files import sample_tables
from crossbatch.serving.user_features import with_profiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from crossbatch.models import FeatureTable

CLOSE = 1e-4  # of the largest number
MOST_IDS = 1 << 24  # that float32 holds exactly


class UserSide(nn.Module):
    """What is traced: history vectors, mask, whether users are known, their features; to interests.

    Args:
        towers: The model.
        schema: Kind and size of each user feature that its `profile` reads.
        by_ids: Whether the vectors `[B, L, 1]` are item ids.
    """

    def __init__(self, towers: Any, schema: Mapping[str, Any], *, by_ids: bool) -> None:
        super().__init__()
        self.towers, self.by_ids = towers, by_ids
        self.schema = dict(sorted(schema.items()))
        self.eval()

    def forward(
        self, vectors: Tensor, mask: Tensor, known: Tensor, *features: Tensor
    ) -> tuple[Tensor, ...]:
        """Interests `[B, K, d]`; of `Queries` their log-weights `[B, K]` as well."""
        towers, rows = self.towers, None
        if self.schema:
            rest, tables = list(features), {}
            for name, entry in self.schema.items():
                values = rest.pop(0)
                starts = rest.pop(0) if entry["kind"] == MULTI else None
                tables[name] = AllRows(entry["kind"], values, starts, entry["num_values"])
            towers = with_profiles(towers, tables)
            everyone = torch.arange(vectors.shape[0], device=vectors.device)
            rows = torch.where(known, everyone, -1)
        if self.by_ids:
            interests = towers.users(vectors.squeeze(-1).long(), rows)
        else:
            interests = towers.interests(vectors, mask, rows)
        found, log_weights = weights_of(interests)
        found = found.unsqueeze(1) if found.ndim == 2 else found
        return (found,) if log_weights is None else (found, log_weights)


def feature_inputs(
    schema: Mapping[str, Any], tables: Mapping[str, FeatureTable], rows: Tensor
) -> list[Tensor]:
    """Features of users by name as tensors: `rows` `[B]` of the tables."""
    found: list[Tensor] = []
    for name, entry in sorted(schema.items()):
        if entry["kind"] == MULTI:
            found += tables[name].bags(rows)
        else:
            values = tables[name].rows(rows)
            found.append(values.float() if values.is_floating_point() else values.long())
    return found


class OwnUsers(nn.Module):
    """Answers as `TwoTower.interests` does, by a graph or by a `UserSide`.

    Args:
        call: Takes the inputs of `UserSide` and gives its outputs.
        schema: Kind and size of each user feature.
        history_length: Width L of the histories that `call` takes.
        block: Number of users that `call` takes; None for any.
    """

    def __init__(
        self,
        call: Callable[..., tuple[Tensor, ...]],
        schema: Mapping[str, Any],
        history_length: int,
        block: int | None = None,
    ) -> None:
        super().__init__()
        self.call, self.schema = call, dict(schema)
        self.history_length, self.block = history_length, block
        self._tables = sample_tables(self.schema, 1)  # of users who are not known

    def with_profiles(self, tables: Mapping[str, FeatureTable]) -> OwnUsers:
        """The same with the features of other users."""
        twin = copy.copy(self)
        twin._tables = dict(tables)
        return twin

    def interests(
        self, vectors: Tensor, mask: Tensor, user_ids: Tensor | None = None
    ) -> Tensor | Queries:
        """Interests `[B, K, d]` of history vectors `[B, L, w]` with mask `[B, L]`."""
        total, length = mask.shape
        missing = self.history_length - length
        if missing > 0:
            vectors = nn.functional.pad(vectors, (0, 0, 0, missing))
            mask = nn.functional.pad(mask, (0, missing))
        rows = vectors.new_full((total,), -1, dtype=torch.long) if user_ids is None else user_ids
        if self.block is None:
            return self._answered(vectors, mask, rows)
        parts = []
        for start in range(0, max(total, 1), self.block):
            part = slice(start, start + self.block)
            own = [vectors[part], mask[part], rows[part]]
            short = self.block - len(own[2])
            if short:
                own = [torch.cat([each, each.new_zeros(short, *each.shape[1:])]) for each in own]
            parts.append(weights_of(self._answered(*own)))
        found = torch.cat([part[0] for part in parts])[:total]
        if parts[0][1] is None:
            return found
        return Queries(found, torch.cat([part[1] for part in parts if part[1] is not None])[:total])

    def _answered(self, vectors: Tensor, mask: Tensor, rows: Tensor) -> Tensor | Queries:
        features = feature_inputs(self.schema, self._tables, rows.clamp_min(0))
        outputs = self.call(vectors, mask, rows >= 0, *features)
        return outputs[0] if len(outputs) == 1 else Queries(outputs[0], outputs[1])


@torch.no_grad()
def reads_vectors(towers: Any, history: Tensor, *rows: Tensor) -> bool:
    """Whether a model's `interests` of the items' `describe` are its `users`, for B users.

    A subclass may have changed one of them and not the others.
    """
    if isinstance(towers, TwoTower) and type(towers) is TwoTower:
        return True
    if not all(callable(getattr(towers, name, None)) for name in ("describe", "interests")):
        return False
    if len(rows) > 1:  # rows of two kinds are for towers that read ids
        return False
    expected, _ = weights_of(towers.users(history, *rows))
    try:
        vectors = towers.describe(history.flatten()).view(*history.shape, -1)
        found, _ = weights_of(towers.interests(vectors, history != 0, *rows))
    except (RuntimeError, TypeError, ValueError):
        return False
    if found.shape != expected.shape:
        return False
    scale = max(float(expected.abs().max()), 1e-12)
    return float((found - expected).abs().max()) <= CLOSE * scale


def traced(side: UserSide, width: int, history_length: int) -> GraphData:
    """The graph of a user side that reads vectors of this width, `history_length` of them."""
    users = BLOCK
    rows = torch.arange(users)
    vectors = torch.zeros(users, history_length, width)
    vectors[:, 0] = 1.0
    mask = torch.zeros(users, history_length, dtype=torch.bool)
    mask[:, 0] = True
    features = feature_inputs(side.schema, sample_tables(side.schema, users), rows)
    example = (vectors, mask, torch.ones(users, dtype=torch.bool), *features)
    ragged, place = [], 3
    for entry in side.schema.values():
        ragged += [place] if entry["kind"] == MULTI else []
        place += 2 if entry["kind"] == MULTI else 1
    return trace(side, example, side.towers.state_dict(), ragged)


def ids_as_vectors(num_items: int) -> Tensor:
    """What is stored of items for a model that reads ids: `[num_items + 1, 1]` float32."""
    return torch.arange(num_items + 1, dtype=torch.float32).unsqueeze(1)
