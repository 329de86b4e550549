"""Item towers that read text: ids, text and other content, joined as in `ItemTower`.

    [model]
    item_tower = "text_transformer"     # or "huggingface", with item.model = "path/of/an/encoder"

Both give an `ItemTower` whose `encoder` is a `TextEncoder`; its learning rate is
`train.lr_of."item_tower.encoder"`. It encodes each distinct item once:

    encoder = TextEncoder(inputs.item_features["title"], Transformer(8192, 128))
    vectors = encoder(item_ids)                     # [N, 128]
    with encoder.once():                            # a batch: what was encoded is not encoded again
        positives, history = encoder(item_ids), encoder(history_ids)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .features import FeatureTable
from .huggingface_states import HuggingFace
from .item_tower import NOTHING, ItemTower
from .layers import check_at_least_one, check_choice, check_share
from .own_towers import Inputs
from .sasrec import Block

POOLINGS = ("mean", "cls")
CHUNK = 256  # items encoded at once, of about the same length: little of them is padding


class TextEncoder(nn.Module):
    """Token ids of items, through a module that gives a state for each token, pooled.

    Args:
        table: Token ids of the items.
        states: Maps token ids `[n, L]` and a mask `[n, L]` to states `[n, L, dim]`; its attribute
            `dim` says how wide they are, `max_tokens` how many tokens it takes.
        pooling: `"mean"` of the tokens' states, or the state of the first one (`"cls"`).
        frozen: Whether the weights never change. Then an item is encoded once and its vector kept:
            `[rows of the table, dim]` float32 in memory.

    Attributes:
        dim: Width of the vectors. An item without text has zeros.
    """

    def __init__(
        self, table: FeatureTable, states: Any, *, pooling: str = "mean", frozen: bool = False
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        self.table, self.states, self.dim = table, states, int(states.dim)
        self.pooling, self.frozen = pooling, frozen
        self._batch: tuple[Tensor, Tensor] | None = None  # ids [n] ascending and vectors [n, dim]
        self._kept: tuple[Tensor, Tensor] | None = None  # which rows are known, and all vectors
        if frozen:
            self.requires_grad_(requires_grad=False)
            # Weights that are loaded are other weights.
            self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]
        self.train()

    def forward(self, item_ids: Tensor) -> Tensor:
        """Vectors `[N, dim]` of items `[N]`."""
        distinct, where = item_ids.unique(return_inverse=True)
        return self._distinct(distinct).index_select(0, where)

    @contextmanager
    def once(self) -> Iterator[None]:
        """Remember what is encoded, with its graph, until the context ends."""
        nothing = torch.zeros(0)
        self._batch = (nothing.long(), nothing)
        try:
            yield
        finally:
            self._batch = None

    def forget(self) -> None:
        """Drop the vectors that a frozen encoder keeps."""
        self._kept = None

    def train(self, mode: bool = True) -> "TextEncoder":
        """Set the mode; a frozen encoder is always in evaluation mode, without dropout."""
        return super().train(mode and not self.frozen)

    def _distinct(self, ids: Tensor) -> Tensor:
        """Vectors `[n, dim]` of ascending ids `[n]`."""
        if self._batch is None:
            return self._vectors(ids)
        known, vectors = self._batch
        new = ids[~torch.isin(ids, known.to(ids.device))]
        if len(new):
            found = self._vectors(new)
            order = torch.cat([known.to(ids.device), new]).sort()
            if len(known):
                found = torch.cat([vectors, found]).index_select(0, order.indices)
            known, vectors = order.values, found
            self._batch = known, vectors
        return vectors.index_select(0, torch.searchsorted(known, ids))

    def _vectors(self, ids: Tensor) -> Tensor:
        if not self.frozen:
            return self._encoded(ids)
        if self._kept is None or self._kept[1].device != ids.device:
            known = torch.zeros(len(self.table), dtype=torch.bool, device=ids.device)
            self._kept = known, torch.zeros(len(self.table), self.dim, device=ids.device)
        known, vectors = self._kept
        missing = ids[~known[ids]]
        if len(missing):
            # In full precision whatever a training step uses: evaluation reads the same vectors.
            with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
                vectors[missing] = self._encoded(missing).float()
            known[missing] = True
        return vectors.index_select(0, ids)

    def _encoded(self, ids: Tensor) -> Tensor:
        lengths = self.table.lengths(ids)
        order = lengths.argsort(descending=True, stable=True)
        real = int((lengths > 0).sum())
        parts = [self._pooled(ids[chunk]) for chunk in order[:real].split(CHUNK)] if real else []
        empty = torch.zeros(len(ids) - real, self.dim, device=ids.device)
        vectors = torch.cat([*parts, empty.to(parts[0].dtype) if parts else empty])
        return vectors.index_select(0, order.argsort())

    def _pooled(self, ids: Tensor) -> Tensor:
        tokens, mask = self.table.padded(ids, self.states.max_tokens)
        states: Tensor = self.states(tokens, mask)  # [n, L, dim]
        if self.pooling == "cls":
            return states[:, 0]
        weights = mask.unsqueeze(2).to(states.dtype)
        return (states * weights).sum(dim=1) / weights.sum(dim=1)


def _forget(encoder: TextEncoder, _: object) -> None:
    encoder.forget()


class Transformer(nn.Module):
    """A small transformer encoder over token ids, from scratch; positions are learned.

    Args:
        num_tokens: Token ids are below it.
        dim: Width of the states.
        layers: Blocks of self-attention.
        heads: Of each block.
        dropout: Share of the states that are dropped in training.
        max_tokens: Tokens of a text that are read, the first ones.
        checkpointing: Whether the backward pass computes the blocks again instead of keeping all
            their states: less memory, a third more time.
    """

    def __init__(
        self,
        num_tokens: int,
        dim: int,
        *,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        max_tokens: int = 64,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        check_at_least_one(layers=layers, heads=heads, width=dim, max_tokens=max_tokens)
        check_share("dropout", dropout)
        if dim % heads:
            raise ValueError(f"heads must divide width, got heads={heads} and width={dim}")
        self.dim, self.max_tokens, self.checkpointing = dim, max_tokens, checkpointing
        # Plain dense weights: checkpointing reads them twice, which row optimisers must not see.
        self.tokens = nn.Embedding(num_tokens, dim)
        self.positions = nn.Embedding(max_tokens, dim)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.last_norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """States `[n, L, dim]` of token ids `[n, L]`, of which those in `mask` are real."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.dropout(self.norm(self.tokens(tokens) + self.positions(places)))
        visible = mask[:, None, None, :]
        again = self.checkpointing and self.training and torch.is_grad_enabled()
        for each in self.blocks:
            block = cast("Block", each).padded
            if again:
                states = checkpoint(block, states, states, visible, use_reentrant=False)
            else:
                states = block(states, states, visible)
        vectors: Tensor = self.last_norm(states)
        return vectors


def text_transformer(
    inputs: Inputs,
    *,
    column: str = "",
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    dropout: float = 0.1,
    max_tokens: int = 64,
    pooling: str = "mean",
    checkpointing: bool = False,
    id: bool = True,  # noqa: A002 (the recipe's own word)
    id_dim: int | None = None,
    hidden: Sequence[int] = (),
    feature_dims: Mapping[str, int] = NOTHING,
) -> ItemTower:
    """An item tower with a small transformer, trained from scratch, over the tokens of a text.

    Args:
        inputs: What the dataset offers.
        column: Which feature of token ids; may be left out if there is one.
        width: Of the transformer's states.
        layers: As in `Transformer`.
        heads: As in `Transformer`.
        dropout: As in `Transformer`.
        max_tokens: As in `Transformer`.
        pooling: As in `TextEncoder`.
        checkpointing: As in `Transformer`.
        id: As in `ItemTower`, like the following ones.
        id_dim: Width of the id embedding.
        hidden: Widths of ReLU layers.
        feature_dims: Widths of other features' encodings.
    """
    name, table = text_column(inputs, column)
    states = Transformer(
        table.num_values,
        width,
        layers=layers,
        heads=heads,
        dropout=dropout,
        max_tokens=max_tokens,
        checkpointing=checkpointing,
    )
    encoder = TextEncoder(table, states, pooling=pooling)
    return _tower(inputs, name, encoder, id, id_dim, hidden, feature_dims)


def huggingface(
    inputs: Inputs,
    *,
    model: str,
    column: str = "",
    pooling: str = "mean",
    frozen_layers: int = 0,
    checkpointing: bool = False,
    config: Mapping[str, Any] = NOTHING,
    id: bool = True,  # noqa: A002 (the recipe's own word)
    id_dim: int | None = None,
    hidden: Sequence[int] = (),
    feature_dims: Mapping[str, int] = NOTHING,
) -> ItemTower:
    """An item tower with a pretrained Hugging Face encoder over the tokens of a text.

    Args:
        inputs: What the dataset offers.
        model: Folder of the encoder: `config.json` and `model.safetensors`.
        column: Which feature of token ids; may be left out if there is one. It must have been
            prepared with the encoder's own tokenizer.
        pooling: As in `TextEncoder`.
        frozen_layers: The token embeddings and so many layers above them keep their weights; −1
            for the whole encoder, which then encodes each item only once.
        checkpointing: Whether the backward pass computes the layers again instead of keeping all
            their states: less memory, a third more time.
        config: Content of the encoder's `config.json`. Training fills it in, so that a run or a
            bundle can be opened where the folder is not.
        id: As in `ItemTower`, like the following ones.
        id_dim: Width of the id embedding.
        hidden: Widths of ReLU layers.
        feature_dims: Widths of other features' encodings.
    """
    name, table = text_column(inputs, column)
    states = HuggingFace(
        model,
        config,
        frozen_layers=frozen_layers,
        checkpointing=checkpointing,
        pretrained=not inputs.weights_follow,
    )
    states.check_tokens(name, table)
    encoder = TextEncoder(table, states, pooling=pooling, frozen=frozen_layers == -1)
    return _tower(inputs, name, encoder, id, id_dim, hidden, feature_dims)


def text_column(inputs: Inputs, column: str) -> tuple[str, FeatureTable]:
    """The name and table of the token ids that a tower reads.

    Raises:
        ValueError: If there is no such feature, or several and none is named.
    """
    found = {name: each for name, each in inputs.item_features.items() if each.kind == "tokens"}
    if column and column not in found:
        known = ", ".join(found) or "none"
        raise ValueError(f"item.column is {column!r}, but the features of token ids are: {known}")
    if not found:
        raise ValueError(
            "a tower that reads text needs a feature of token ids: prepare the dataset with "
            "--tokenizer, and have it in model.item_features"
        )
    if not column and len(found) > 1:
        raise ValueError(f"item.column must name one of {', '.join(found)}, got none")
    name = column or next(iter(found))
    return name, found[name]


def _tower(
    inputs: Inputs,
    column: str,
    encoder: TextEncoder,
    has_id: bool,
    id_dim: int | None,
    hidden: Sequence[int],
    feature_dims: Mapping[str, int],
) -> ItemTower:
    others = {name: each for name, each in inputs.item_features.items() if name != column}
    return ItemTower(
        inputs.num_items,
        inputs.dim,
        None,
        encoder,
        features=others,
        id=has_id,
        id_dim=id_dim,
        hidden=hidden,
        feature_dims=feature_dims,
    )
