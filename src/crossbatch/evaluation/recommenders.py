"""What can be evaluated: anything that lists k items for each user of a batch.

recommend = model_recommender(model, ExactIndex(encode_items(model, ds.num_items)))
recommend(batch, 50, None)      # [B, 50] item ids
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from crossbatch.queries import Queries, feature_rows

if TYPE_CHECKING:
    from crossbatch.evaluation.distributed import ItemShards
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
