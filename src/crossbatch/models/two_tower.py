"""TwoTower: histories and items into one space, where a dot product is the score.

model = TwoTower(ItemTower(num_items, 64), YouTubeDNN(64))
u, v = model(history, item_ids)                 # f_u, g_v: [B, d] each
interests = model.users(history)                # [B, K, d], for retrieval
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .checks import check_choice, check_share
from .dense import mlp
from .embedding import RowTable, set_sparse
from .features import FeatureEncoder, FeatureTable
from .history import drop_positions
from .item_tower import NO_FEATURES, NOTHING
from .normalize import unit_vectors
from .readout import hard_readout

HISTORY_SOURCES = ("id", "content", "item_tower")


class TwoTower(nn.Module):
    """Any item tower beside any user tower.

    Nothing has to be subclassed. An item tower is a module that maps ids `[N]` to `[N, d]`; a user
    tower maps history vectors `[B, L, w]` (zeros at padding) and a mask `[B, L]` to `[B, d]` or
    `[B, K, d]`, and may have a method `select(interests, target)` of its own. One that looks at
    the mean of the history alone may say so by a method `of_mean(mean)` of `[B, w]`.

    Args:
        item_tower: `ItemTower` or any such module.
        user_tower: One of `MODELS` or any such module.
        history: What describes the items of a history: their rows of the item tower's id table
            (`"id"`, tied as in ComiRec), these with their content beside them (`"content"`, what
            the item tower's layers see), or their vectors from the whole item tower
            (`"item_tower"`). The user tower must read vectors of that width (`history_dim`).
        user_features: Profile of users by name. Encodings are joined to each interest and brought
            back to d by a linear layer.
        user_feature_dims: Widths of single user features' encodings, by name.
        user_hidden: Widths of ReLU layers before that linear layer.
        normalize: Whether both towers' vectors have length 1.
        history_dropout: Share of history items forgotten at random in training.
        sparse: Whether gradients of the user features' tables are sparse (see `EmbeddingTable`).
    """

    def __init__(
        self,
        item_tower: nn.Module,
        user_tower: nn.Module,
        *,
        history: str = "id",
        user_features: Mapping[str, FeatureTable] = NO_FEATURES,
        user_feature_dims: Mapping[str, int] = NOTHING,
        user_hidden: Sequence[int] = (),
        normalize: bool = False,
        history_dropout: float = 0.0,
        sparse: bool = True,
    ) -> None:
        super().__init__()
        _check(history, item_tower, user_tower)
        check_share("history_dropout", history_dropout)
        self.item_tower, self.user_tower = item_tower, user_tower
        self.history, self.normalize, self.history_dropout = history, normalize, history_dropout
        self.profile: FeatureEncoder | None = None
        if user_features:
            dim = _common_dim(item_tower, user_tower)
            self.profile = FeatureEncoder(user_features, user_feature_dims)
            set_sparse(self.profile, sparse)
            self.fuse = mlp(dim + self.profile.dim, user_hidden, dim)

    def forward(
        self, history: Tensor, item_ids: Tensor, user_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """User and item vectors of a training batch.

        Args:
            history: `[B, L]` int64, oldest first, right-padded with 0.
            item_ids: Positives `[B]`; of several interests each row's positive chooses.
            user_ids: `[B]`, needed where there are user features.

        Returns:
            u `[B, d]` and v `[B, d]`.
        """
        v = self.items(item_ids)
        return self.select(self.users(history, user_ids), v), v

    def users(self, history: Tensor, user_ids: Tensor | None = None) -> Tensor:
        """Interests `[B, K, d]` of histories `[B, L]`."""
        if self.training and self.history_dropout > 0:
            history = drop_positions(history, self.history_dropout)
        mask = history != 0
        table = getattr(self.item_tower, "table", None)
        of_mean = getattr(self.user_tower, "of_mean", None)
        if of_mean and self.history == "id" and isinstance(table, RowTable):
            # No [B, L, d] tensor for a tower that looks at the mean alone.
            size = mask.sum(dim=1, keepdim=True).clamp_min(1)  # an empty history: zeros
            return self._finished(of_mean(table.sum(history) / size), user_ids)
        return self.interests(self.read_history(history, mask), mask, user_ids)

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

    def read_history(self, history: Tensor, mask: Tensor) -> Tensor:
        """Vectors `[B, L, w]` of the items of histories `[B, L]`, zeros where `mask` is False."""
        if self.history == "id":
            table = self.item_tower.table
            vectors: Tensor = table(history)  # type: ignore[operator]
            # Masking costs more than the lookup; our own tables are zero at padding as they are.
            clean = isinstance(table, RowTable) and table.padding_row == 0
            return vectors if clean else torch.where(mask.unsqueeze(-1), vectors, 0.0)
        if torch.compiler.is_exporting():  # a graph cannot depend on how many items are distinct
            encoded = self.described(history.flatten()).view(*history.shape, -1)
            return torch.where(mask.unsqueeze(-1), encoded, 0.0)
        real = mask.flatten().nonzero().squeeze(1)  # [positions]
        distinct, where = torch.unique(history.flatten()[real], return_inverse=True)
        encoded = self.described(distinct)[where]  # [positions, w]
        blank = encoded.new_zeros(history.numel(), encoded.shape[-1])
        return blank.index_copy(0, real, encoded).view(*history.shape, -1)

    def described(self, item_ids: Tensor) -> Tensor:
        """What describes items `[N]` in a history, `[N, w]`."""
        if self.history == "item_tower":
            return self.items(item_ids)
        tower = self.item_tower
        describe = tower.table if self.history == "id" else tower.columns
        vectors: Tensor = describe(item_ids)  # type: ignore[operator]
        return vectors

    def interests(self, vectors: Tensor, mask: Tensor, user_ids: Tensor | None = None) -> Tensor:
        """Interests `[B, K, d]` of history vectors `[B, L, w]`: `users` after the lookup."""
        return self._finished(self.user_tower(vectors, mask), user_ids)

    def _finished(self, interests: Tensor, user_ids: Tensor | None) -> Tensor:
        """Interests `[B, K, d]` of a user tower's output, with the profile, normalised if asked."""
        if interests.ndim == 2:
            interests = interests.unsqueeze(1)
        if self.profile is not None:
            profile = self._profile(self.profile, user_ids, interests)  # [B, K, p]
            interests = self.fuse(torch.cat([interests, profile], dim=-1))
        return unit_vectors(interests) if self.normalize else interests

    def _profile(
        self, encoder: FeatureEncoder, user_ids: Tensor | None, interests: Tensor
    ) -> Tensor:
        """Profiles, repeated for each interest; zeros for users unknown (None or -1)."""
        B, K, _ = interests.shape
        if user_ids is None:
            if self.training:
                raise ValueError("user_ids is required to train a model with user features")
            return interests.new_zeros(B, K, encoder.dim)
        encoded: Tensor = encoder(user_ids.clamp_min(0))
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
