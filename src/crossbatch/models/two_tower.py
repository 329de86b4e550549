"""TwoTower: histories and items into one space, where a dot product is the score.

model = TwoTower(ItemTower(num_items, 64), YouTubeDNN(64))
u, v = model(history, item_ids)                 # f_u, g_v: [B, d] each
interests = model.users(history)                # [B, K, d], for retrieval
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from crossbatch.kernels.ragged import real_entries
from crossbatch.kernels.unit_vectors import unit_vectors
from crossbatch.queries import Queries

from .embedding import set_sparse
from .features import FeatureEncoder, FeatureTable
from .history import History, PaddedHistory, drop_items
from .item_tower import NO_FEATURES, NOTHING
from .layers import check_choice, check_share, hard_readout, identity_layer, mlp
from .text_towers import TextEncoder

HISTORY_SOURCES = ("id", "content", "item_tower")


class TwoTower(nn.Module):
    """Any item tower beside any user tower.

    Nothing has to be subclassed or registered. An item tower is a module that maps ids `[N]` to
    `[N, d]`. A user tower maps a `History` to `[B, d]` or `[B, K, d]`: the vectors of its items end
    to end (`items, stops = history`), padded (`vectors, mask = history.padded()`) or averaged
    (`history.mean()`). It may have a method `select(interests, target)`. One that uses `padded` or
    the means alone can be exported as a graph. A tower whose interests score items together, by a
    log-sum-exp, returns `Queries` and has a method `divided(queries)` that applies its temperature.

    Args:
        item_tower: `ItemTower` or any such module.
        user_tower: One of `MODELS` or any such module.
        history: What describes the items of a history: their rows of the item tower's id table
            (`"id"`, tied as in ComiRec), these with their content beside them (`"content"`, what
            the item tower's layers see), or their vectors from the whole item tower
            (`"item_tower"`). The user tower must read vectors of that width (`history_dim`).
        user_features: Profile of users by name. Encodings are joined to each interest and brought
            back to d by a linear layer.
        context: Features of requests by name, with a row for each event; joined likewise.
        user_feature_dims: Widths of single encodings of user features and context, by name.
        user_hidden: Widths of ReLU layers before that linear layer.
        normalize: Whether both towers' vectors have length 1.
        history_dropout: Share of history items forgotten at random in training.
        context_dropout: Share of the values of context, and of user features beside it, hidden at
            random in training, so that a request may leave one out.
        sparse: Whether gradients of the user features' tables are sparse (see `EmbeddingTable`).
    """

    def __init__(
        self,
        item_tower: nn.Module,
        user_tower: nn.Module,
        *,
        history: str = "id",
        user_features: Mapping[str, FeatureTable] = NO_FEATURES,
        context: Mapping[str, FeatureTable] = NO_FEATURES,
        user_feature_dims: Mapping[str, int] = NOTHING,
        user_hidden: Sequence[int] = (),
        normalize: bool = False,
        history_dropout: float = 0.0,
        context_dropout: float = 0.0,
        sparse: bool = True,
    ) -> None:
        super().__init__()
        _check(history, item_tower, user_tower)
        check_share("history_dropout", history_dropout)
        check_share("context_dropout", context_dropout)
        self.item_tower, self.user_tower = item_tower, user_tower
        self.history, self.normalize, self.history_dropout = history, normalize, history_dropout
        self.profile: FeatureEncoder | None = None
        self.reads_context = bool(context)
        if both := sorted(set(user_features) & set(context)):
            raise ValueError(f"{both[0]!r} is a user feature and context: rename one of them")
        if user_features or context:
            dim = _common_dim(item_tower, user_tower)
            features = {**user_features, **context}
            self.profile = FeatureEncoder(
                features, user_feature_dims, of_events=context, dropout=context_dropout
            )
            set_sparse(self.profile, sparse)
            self.fuse = mlp(dim + self.profile.dim, user_hidden, dim)
            # A tower that begins by passing items through does so with a profile beside it too;
            # and context, which tells less than the history, begins by leaving it as it is.
            begins = bool(context) or getattr(user_tower, "begins_as_identity", False)
            if begins and not user_hidden:
                self.fuse[0] = identity_layer(dim + self.profile.dim, dim)

    def forward(
        self,
        history: Tensor,
        item_ids: Tensor,
        user_ids: Tensor | None = None,
        event_ids: Tensor | None = None,
        on_items: Callable[[Tensor], None] | None = None,
    ) -> tuple[Tensor | Queries, Tensor]:
        """User and item vectors of a training batch.

        Args:
            history: `[B, L]` int64, oldest first, right-padded with 0.
            item_ids: Positives `[B]`; of several interests each row's positive chooses.
            user_ids: `[B]`, needed where there are user features or context.
            event_ids: `[B]` rows of the context, needed where there is any.
            on_items: Is called with v before the histories are read, to send it to other processes.

        Returns:
            u `[B, d]`, or `Queries` where several score together, and v `[B, d]`.
        """
        with self._each_item_once():
            v = self.items(item_ids)
            if on_items is not None:
                on_items(v)
            rows = (user_ids,) if event_ids is None else (user_ids, event_ids)
            interests = self.users(history, *rows)
        return interests if isinstance(interests, Queries) else self.select(interests, v), v

    def _each_item_once(self) -> AbstractContextManager[None]:
        """While this is open, an expensive encoder of the item tower encodes no item twice."""
        encoder = getattr(self.item_tower, "encoder", None)
        return encoder.once() if isinstance(encoder, TextEncoder) else nullcontext()

    def users(
        self, history: Tensor, user_ids: Tensor | None = None, event_ids: Tensor | None = None
    ) -> Tensor | Queries:
        """Interests `[B, K, d]` of histories `[B, L]`, of which the best scores an item.

        `Queries` where they score it together.
        """
        if self.training and self.history_dropout > 0:
            history = drop_items(history, self.history_dropout)
        if torch.compiler.is_exporting():  # a graph cannot depend on how many items are real
            vectors = self.describe(history.flatten()).view(*history.shape, -1)
            return self.interests(vectors, history != 0, user_ids)
        interests = self.user_tower(self._read_history(*real_entries(history)))
        return self._finished(interests, user_ids, event_ids)

    def items(self, item_ids: Tensor) -> Tensor:
        """Vectors `[N, d]` of items `[N]`."""
        vectors: Tensor = self.item_tower(item_ids)
        return unit_vectors(vectors) if self.normalize else vectors

    def select(self, interests: Tensor, target: Tensor) -> Tensor:
        """The one vector `[B, d]` of interests `[B, K, d]` that answers for targets `[B, d]`."""
        if interests.shape[1] == 1:
            return interests.squeeze(1)
        select = getattr(self.user_tower, "select", hard_readout)
        chosen: Tensor = select(interests, target)
        # A mixture of unit vectors is shorter than one.
        return unit_vectors(chosen) if self.normalize else chosen

    def describe(self, item_ids: Tensor) -> Tensor:
        """Vectors `[N, w]` of items `[N]` as histories contain them."""
        if self.history == "item_tower":
            return self.items(item_ids)
        tower = self.item_tower
        describe = tower.table if self.history == "id" else tower.columns
        vectors: Tensor = describe(item_ids)  # type: ignore[operator]
        return vectors

    def _read_history(self, item_ids: Tensor, stops: Tensor) -> History:
        """Histories of items `[P]`; each distinct item goes through an item tower once."""
        if self.history == "item_tower":
            distinct, where = item_ids.unique(return_inverse=True)
            return History(lambda: self.describe(distinct).index_select(0, where), stops)
        source = self.item_tower.table if self.history == "id" else self.item_tower
        mean = getattr(source, "mean" if self.history == "id" else "mean_columns", None)

        def read_mean() -> Tensor:
            begins = torch.constant_pad_nd(stops, (1, -1))
            return cast("Callable[..., Tensor]", mean)(item_ids, begins)

        return History(lambda: self.describe(item_ids), stops, read_mean if mean else None)

    def interests(
        self, vectors: Tensor, mask: Tensor, user_ids: Tensor | None = None
    ) -> Tensor | Queries:
        """Interests `[B, K, d]` of history vectors `[B, L, w]` with mask `[B, L]`.

        This is `users` for vectors that were looked up elsewhere: a served catalogue, a graph.
        """
        interests = self.user_tower(PaddedHistory(vectors, mask))
        return self._finished(interests, user_ids)

    def _finished(
        self,
        interests: Tensor | Queries,
        user_ids: Tensor | None,
        event_ids: Tensor | None = None,
    ) -> Tensor | Queries:
        """Interests `[B, K, d]` of a user tower's output, with the profile, normalised if asked."""
        if isinstance(interests, Queries):
            vectors = cast("Tensor", self._finished(interests.vectors, user_ids, event_ids))
            tower = cast("Any", self.user_tower)
            divided: Queries = tower.divided(Queries(vectors, interests.log_weights))
            return divided
        if interests.ndim == 2:
            interests = interests.unsqueeze(1)
        if self.profile is not None:
            profile = self._profile(self.profile, user_ids, event_ids, interests)  # [B, K, p]
            fused: Tensor = self.fuse(torch.cat([interests, profile], dim=-1))
            interests = fused
        return unit_vectors(interests) if self.normalize else interests

    def _profile(
        self,
        encoder: FeatureEncoder,
        user_ids: Tensor | None,
        event_ids: Tensor | None,
        interests: Tensor,
    ) -> Tensor:
        """Profiles, repeated for each interest; zeros for users unknown (None or -1)."""
        B, K, _ = interests.shape
        if self.reads_context and self.training and event_ids is None:
            raise ValueError("event_ids are required to train a model that reads context")
        if user_ids is None:
            if self.training:
                raise ValueError("user_ids is required to train a model with user features")
            return interests.new_zeros(B, K, encoder.dim)
        encoded: Tensor = encoder(user_ids.clamp_min(0), event_ids)
        encoded = encoded.masked_fill((user_ids < 0).unsqueeze(1), 0.0)
        return encoded.unsqueeze(1).expand(B, K, encoder.dim)


def history_dim(item_tower: nn.Module, history: str) -> int | None:
    """Width of what describes an item of a history; None where the item tower does not tell."""
    if history == "id":
        width = getattr(getattr(item_tower, "table", None), "dim", None)
    else:
        width = getattr(item_tower, "width" if history == "content" else "dim", None)
    return width if isinstance(width, int) else None


def _check(history: str, item_tower: nn.Module, user_tower: nn.Module) -> None:
    check_choice("history", history, HISTORY_SOURCES)
    if history == "id" and not isinstance(getattr(item_tower, "table", None), nn.Module):
        raise ValueError(
            'history="id" needs an item tower with an id table; pass history="item_tower"'
        )
    if history == "content" and not callable(getattr(item_tower, "columns", None)):
        raise ValueError(
            'history="content" needs an item tower with a method columns(item_ids); '
            'pass history="item_tower"'
        )
    given, read = history_dim(item_tower, history), getattr(user_tower, "input_dim", None)
    if given and read and given != read:
        raise ValueError(
            f"history={history!r} describes an item by {given} numbers, but the user tower reads "
            f"{read}; give it input_dim={given}"
        )


def _common_dim(item_tower: nn.Module, user_tower: nn.Module) -> int:
    for tower in (item_tower, user_tower):
        if isinstance(dim := getattr(tower, "dim", None), int):
            return dim
    raise ValueError("user_features need a tower that tells its width in an attribute `dim`")
