"""What can be evaluated: anything that lists k items for each user of a batch, seen items or not.

    recommend = model_recommender(model, ExactIndex(encode_items(model, ds.num_items)))
    recommend(batch, 50, None)      # [B, 50] item ids

    seen = Seen.of(batch)           # what the users have had already
    ranked = unseen_lists(recommend, batch, k, recommend(batch, k + spare, None), seen)

The k best unseen items are the first k unseen ones of a longer list, so that one search serves both
protocols. The few users whose longer list holds too many seen items are searched for again.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor, nn

from crossbatch.queries import Queries, feature_rows

if TYPE_CHECKING:
    from crossbatch.evaluation.evaluator import ItemShards
    from crossbatch.retrieval import Index

# Items encoded at once: the content features of a whole catalogue need not fit in memory. Of
# towers with an expensive encoder fewer, so that progress shows.
ITEM_CHUNK, EXPENSIVE_CHUNK = 16_384, 1_024


class UserBatch(Protocol):
    """The part of an evaluation batch that a recommender may see: no targets."""

    @property
    def user_ids(self) -> Tensor:
        """`[B]` user ids."""
        ...

    @property
    def history(self) -> Tensor:
        """`[B, L]` item ids, oldest first, padded with 0."""
        ...


class ItemEncoder(Protocol):
    """What gives vectors to items."""

    def items(self, item_ids: Tensor) -> Tensor:
        """`[N]` item ids → `[N, d]`."""
        ...


class Towers(ItemEncoder, Protocol):
    """A two-tower model as evaluation sees it; `crossbatch.models.TwoTower` is one."""

    def users(self, history: Tensor, user_ids: Tensor | None = None) -> Tensor | Queries:
        """`[B, L]` histories → `[B, K, d]` interests, or `Queries`."""
        ...


OnItems = Callable[[int, int], None]  # (items encoded so far, of how many)

# (batch, k, ids to leave out [B, X] or None) → item ids [B, k], best first, 0 for an empty slot
Recommender = Callable[[UserBatch, int, Tensor | None], Tensor]


def model_recommender(
    model: Towers, index: "Index | ItemShards", *, device: torch.device | str = "cpu"
) -> Recommender:
    """Rank the items of an index of the model's item vectors by its user vectors.

    The caller puts the model in `evaluation_mode`; `device` is the model's own.
    """

    @torch.no_grad()
    def recommend(batch: UserBatch, k: int, exclude: Tensor | None) -> Tensor:
        rows = (each.to(device) for each in feature_rows(model, batch))
        interests = model.users(batch.history.to(device), *rows)
        return index.search(interests.float(), k, exclude=exclude).item_ids.cpu()

    return recommend


@torch.no_grad()
def encode_items(
    model: ItemEncoder,
    num_items: int,
    *,
    device: torch.device | str = "cpu",
    on_items: OnItems | None = None,
) -> Tensor:
    """Return `[num_items + 1, d]` float32 item vectors; row 0 (padding) is zero.

    `on_items` is called with the items encoded so far and with their number, for a progress bar.
    """
    vectors: Tensor | None = None
    size = item_chunk(model)
    for start in range(1, num_items + 1, size):
        ids = torch.arange(start, min(start + size, num_items + 1), device=device)
        chunk = model.items(ids)
        if vectors is None:
            vectors = torch.zeros(num_items + 1, chunk.shape[1], device=chunk.device)
        vectors[start : start + len(ids)] = chunk
        if on_items is not None:
            on_items(start + len(ids) - 1, num_items)
    if vectors is None:
        raise ValueError(f"num_items must be at least 1, got {num_items}")
    return vectors


def item_chunk(model: object) -> int:
    """How many items to encode at once."""
    tower = getattr(getattr(model, "towers", model), "item_tower", None)
    return ITEM_CHUNK if getattr(tower, "encoder", None) is None else EXPENSIVE_CHUNK


@contextmanager
def evaluation_mode(model: object, *, seed: int) -> Iterator[None]:
    """Evaluate without side effects: modules' modes and the random state are restored.

    Models that draw random numbers at inference (MIND's routing logits) draw them from `seed`, so
    an evaluation repeats exactly and does not change the training that follows.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    training = [module.training for module in modules]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            for module in modules:
                module.training = False
            yield
        finally:
            for module, mode in zip(modules, training, strict=True):
                module.training = mode


class EvalBatch(UserBatch, Protocol):
    """Users with their held-out items; `crossbatch.data.EvalBatch` is one."""

    @property
    def target_ids(self) -> Tensor:
        """`[T]` held-out items of all users of the batch, one user after another."""
        ...

    @property
    def target_offsets(self) -> Tensor:
        """`[B + 1]` where each user's targets start and end."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """What each of B users has had before the targets."""

    item_ids: Tensor  # [n] of all users, one after another
    offsets: Tensor  # [B + 1] where each user's items start and end

    @classmethod
    def of(cls, batch: UserBatch) -> Self:
        """Read a batch's `seen`, (ids, offsets); of a batch without it, the history shown."""
        known: tuple[Tensor, Tensor] | None = getattr(batch, "seen", None)
        return cls.from_padded(batch.history) if known is None else cls(*known)

    @classmethod
    def from_padded(cls, item_ids: Tensor) -> Self:
        """Of `[B, X]` ids, where 0 means none."""
        there = item_ids > 0
        ends = there.sum(dim=1).cumsum(dim=0)
        return cls(item_ids[there], torch.cat([ends.new_zeros(1), ends]))

    @property
    def longest(self) -> int:
        """The most items that one user has had."""
        return int(self.offsets.diff().max()) if len(self.offsets) > 1 else 0

    def contains(self, users: Tensor, item_ids: Tensor) -> Tensor:
        """Whether each `[n]` item is one that the user in the same place of `users` has had."""
        own = torch.repeat_interleave(self.offsets.diff())
        stride = 1 + max(
            (int(ids.max()) for ids in (self.item_ids, item_ids) if len(ids)), default=0
        )
        return torch.isin(users * stride + item_ids, own * stride + self.item_ids)

    def padded(self, users: Tensor) -> Tensor:
        """The items of some users, `[b, X]` padded with 0."""
        lengths = self.offsets.diff()[users]
        columns = torch.arange(int(lengths.max()) if len(lengths) else 0)
        inside = columns < lengths[:, None]
        places = (self.offsets[users][:, None] + columns).where(inside, 0)
        return self.item_ids[places] * inside


@dataclass(frozen=True, slots=True)
class _Users:
    """Some users of a batch."""

    user_ids: Tensor
    history: Tensor
    event_ids: Tensor | None = None


def unseen_lists(
    recommend: Recommender, batch: UserBatch, k: int, listed: Tensor, seen: Seen
) -> Tensor:
    """Return the k best items of each user that the user has not had, `[B, k]`.

    Args:
        recommend: What made the lists.
        batch: The users.
        k: Length of the lists.
        listed: `[B, C]` their best items, nothing left out; the longer, the fewer new searches.
        seen: What they have had.
    """
    B, C = listed.shape
    users = torch.arange(B).repeat_interleave(C)
    skip = seen.contains(users, listed.reshape(-1)).view(B, C) | (listed == 0)
    ranked = first_kept(listed, skip, k)
    # A list that ends in an empty slot holds all there is.
    short = ((~skip).sum(dim=1) < k) & (listed[:, -1] != 0)
    if bool(short.any()):
        again = short.nonzero().squeeze(1)
        events = getattr(batch, "event_ids", None)
        events = None if events is None else events[again]
        few = _Users(batch.user_ids[again], batch.history[again], events)
        # Towers that draw random numbers continue as if there had been no second search.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            ranked[again] = recommend(few, k, seen.padded(again))
    return ranked


def drop_seen(item_ids: Tensor, offsets: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
    """Drop the targets that their user has had already; (ids, offsets) in, the same out."""
    users = torch.repeat_interleave(offsets.diff())
    keep = ~seen.contains(users, item_ids)
    kept_before = torch.cat([keep.new_zeros(1, dtype=torch.long), keep.cumsum(dim=0)])
    return item_ids[keep], kept_before[offsets]


def repeat_share(batches: Iterable[EvalBatch]) -> float:
    """Share of the targets that their user has had before; 0 if there is no target."""
    total = repeated = 0
    for batch in batches:
        left, _ = drop_seen(batch.target_ids, batch.target_offsets, Seen.of(batch))
        total += len(batch.target_ids)
        repeated += len(batch.target_ids) - len(left)
    return repeated / total if total else 0.0


def first_kept(candidates: Tensor, skip: Tensor, k: int) -> Tensor:
    """Return the first k ids of each row of `[B, C]` that are not skipped, 0 where there are fewer.

    Args:
        candidates: `[B, C]` item ids, best first.
        skip: `[B, C]` which of them to leave out.
        k: Length of the lists.
    """
    order = skip.byte().argsort(dim=1, stable=True)[:, :k]
    ids = candidates.masked_fill(skip, 0).gather(1, order)
    return torch.nn.functional.pad(ids, (0, k - ids.shape[1]))
