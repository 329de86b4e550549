"""Which rows of an earlier model's tables belong to which items and values of another dataset.

rows = matching_rows(["", "a", "b"], ["", "b", "c"])     # 0, 2, −1
moved_rows(table, rows, start)                           # [3, w]: as before, of "b", start
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from crossbatch.data.dataset.features import read_encoders
from crossbatch.errors import DataError
from crossbatch.models import mean_id_vector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from crossbatch.data import Dataset
    from crossbatch.data.dataset.encoders import Encoder
    from crossbatch.training.warm_start import EarlierModel

ID_TABLE = "item_tower.table.weight"


def matching_rows(old: Sequence[str], new: Sequence[str]) -> Tensor:
    """For each row of a new table its row in the old one, −1 where there is none.

    Row 0, for padding or what is unknown, is the same in both.

    Args:
        old: What each old row stands for; the first one does not matter.
        new: Likewise of the new rows.

    Returns:
        `[len(new)]`, int64.
    """
    known = pl.DataFrame({"value": pl.Series(old[1:], dtype=pl.String)}).with_row_index("row", 1)
    wanted = pl.DataFrame({"value": pl.Series(new[1:], dtype=pl.String)})
    found = wanted.join(known, on="value", how="left", maintain_order="left")["row"]
    rows = torch.zeros(len(new), dtype=torch.int64)
    rows[1:] = torch.from_numpy(found.cast(pl.Int64).fill_null(-1).to_numpy().copy())
    return rows


def moved_rows(table: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    """Rows `[R]` of a table `[T, w]`, and `start` `[w]` where a row is −1.  `[R, w]`."""
    moved = table.detach()[rows.clamp_min(0)]
    moved[rows < 0] = start.detach()
    return moved


def moved_moments(moments: Mapping[str, Tensor], moves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Moments with the rows of some tables moved, by name; a new row's are zero."""
    moved = dict(moments)
    for table, rows in moves.items():
        for name, value in moments.items():
            if name.startswith(f"{table}."):
                moved[name] = moved_rows(value, rows, value.new_zeros(value.shape[1:]))
    return moved


def start_of_new(earlier: EarlierModel, name: str) -> Tensor:
    """The weights `[w]` that a new row of a table begins with."""
    table = earlier.state[name]
    if name == ID_TABLE:
        return mean_id_vector(table, torch.from_numpy(np.array(earlier.item_counts)))
    return table[1:].mean(0).nan_to_num()  # of no values


def matching_values(
    earlier: EarlierModel, dataset: Dataset, path: str, content: Sequence[str]
) -> dict[str, Tensor]:
    """The old row `[R]` of each row of the tables of features' values, by the tables' names.

    `content` are the item features that the item tower reads by a table or layer for each.
    """
    config, moves = earlier.config, {}
    of_requests = (*config.user_features, *(name for name in config.context if name != "*"))
    for kind, prefix, names, encoders in (
        ("item", "item_tower.content", earlier.config.item_features, earlier.item_encoders),
        ("user", "profile", of_requests, earlier.user_encoders),
    ):
        present = read_encoders(dataset.path / "features" / f"{kind}s")
        if kind == "user":
            present |= read_encoders(dataset.path / "features/context")
        tables = content if kind == "item" else sorted(names)
        for name in sorted(names):
            if name not in present:
                raise DataError(
                    f"the model of {path} reads the {kind} feature {name!r}, but {dataset.path} "
                    f"has {', '.join(present) or 'none'}: prepare the dataset with it, or leave "
                    "--from out"
                )
            before, now = encoders[name], present[name]
            if _layout(before) != _layout(now):
                raise DataError(
                    f"{kind} feature {name!r} is {_words(now)} in {dataset.path}, but "
                    f"{_words(before)} in the model of {path}: prepare it as before, or leave "
                    "--from out"
                )
            if name in tables and before.vocabulary is not None and now.vocabulary is not None:
                table = f"{prefix}.encoders.{tables.index(name)}.embedding.weight"
                rows = matching_rows(["", *before.vocabulary], ["", *now.vocabulary])
                # Values that a dataset has gained in place are new to the model.
                moves[table] = rows.where(rows < len(earlier.state[table]), -1)
    return moves


def _layout(encoder: Encoder) -> tuple[str, Any]:
    """What must be alike for weights to keep their meaning."""
    return encoder.kind, [
        encoder.settings.get(key) for key in ("buckets", "size", "model", "tokenizer")
    ]


def _words(encoder: Encoder) -> str:
    settings = ", ".join(f"{key} = {value}" for key, value in encoder.settings.items())
    return f"{encoder.kind} ({settings})" if settings else encoder.kind
