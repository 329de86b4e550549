"""Item towers that read text: ids, text and other content, joined as in `ItemTower`.

[model]
item_tower = "text_transformer"     # or "huggingface", with item.model = "path/of/an/encoder"

Both give an `ItemTower` whose `encoder` is a `TextEncoder`; its learning rate is
`train.lr_of."item_tower.encoder"`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .features import FeatureTable
from .huggingface_states import HuggingFace
from .item_tower import NOTHING, ItemTower
from .own_towers import Inputs
from .text_encoder import TextEncoder, Transformer


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
