"""Content of items or users: tables of known features and the encoders that make vectors of them.

genres = FeatureTable("multi_valued", values, offsets, num_values=19)
encoder = FEATURE_ENCODERS[genres.kind](genres, 32)
vectors = encoder(item_ids)                     # [N, 32]
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from .embedding import EmbeddingTable
from .layers import dense_layer

KINDS = ("categorical", "multi_valued", "tokens", "numeric", "dense")
RAGGED = ("multi_valued", "tokens")  # any number of values a row


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """One feature of R rows (items with row 0 as padding, or users). Read only, never trained.

    Attributes:
        kind: One of `KINDS`.
        values: categorical: int `[R]`, 0 = unknown. multi_valued, tokens: int `[V]`, the rows'
            values one after the other. numeric, dense: float `[R, n]`.
        offsets: multi_valued and tokens only: int64 `[R + 1]`; row r owns
            `values[offsets[r]:offsets[r + 1]]`.
        num_values: Size of the vocabulary of the integer kinds.
        elsewhere: Given an id beyond the rows, the table that has it and the id of its first row.
            Ids that are asked for together are all of one table.
    """

    kind: str
    values: Tensor
    offsets: Tensor | None = None
    num_values: int = 0
    elsewhere: "Callable[[int], tuple[FeatureTable, int]] | None" = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if (self.kind in RAGGED) != (self.offsets is not None):
            raise ValueError(
                f"offsets belong to {' and '.join(RAGGED)} features only, got kind {self.kind}"
            )
        if self.kind in ("categorical", *RAGGED) and self.num_values < 1:
            raise ValueError(f"num_values must be at least 1, got {self.num_values}")
        if self.kind in ("numeric", "dense") and self.values.ndim != 2:
            raise ValueError(
                f"values of a {self.kind} feature must be [rows, columns], "
                f"got shape {list(self.values.shape)}"
            )

    @classmethod
    def from_arrays(cls, kind: str, values: Any, offsets: Any = None, num_values: int = 0) -> Self:
        """The table over NumPy arrays, memory-mapped ones included: nothing is copied."""
        with warnings.catch_warnings():
            # torch warns that a read-only map could be written to; nothing here ever writes.
            warnings.filterwarnings("ignore", message=".*not writable.*")
            tensors = [
                None if array is None else torch.from_numpy(array) for array in (values, offsets)
            ]
        assert tensors[0] is not None
        return cls(kind, tensors[0], tensors[1], num_values)

    def __len__(self) -> int:
        """Number of rows R."""
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def located(self, ids: Tensor) -> "tuple[FeatureTable, Tensor]":
        """The table that has the rows `ids` `[N]`, and their places in it."""
        if self.elsewhere is None or not len(ids) or (first := int(ids[0])) < len(self):
            return self, ids
        table, begin = self.elsewhere(first)
        return table, ids - begin

    def rows(self, ids: Tensor) -> Tensor:
        """The values of rows `ids` `[N]`: `[N]` or `[N, n]`, on the device of the ids."""
        self, ids = self.located(ids)
        return self.values.index_select(0, ids.to(self.values.device)).to(ids.device)

    def bags(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The values of ragged rows `[N]`, one after the other, and where each row begins."""
        self, ids = self.located(ids)
        assert self.offsets is not None
        rows = ids.to(self.offsets.device)
        starts = self.offsets[rows]  # [N]
        lengths = self.offsets[rows + 1] - starts
        begins = lengths.cumsum(0) - lengths  # [N] where each bag begins in the result
        shift = torch.repeat_interleave(starts - begins, lengths)
        values = self.values[shift + torch.arange(len(shift), device=shift.device)]
        return values.to(ids.device, torch.int64), begins.to(ids.device)

    def selected(self, ids: Tensor) -> "FeatureTable":
        """A table of rows `ids` `[N]` alone, in that order."""
        if self.offsets is None:
            return FeatureTable(self.kind, self.rows(ids), None, self.num_values)
        values, begins = self.bags(ids)
        offsets = torch.cat([begins, begins.new_tensor([len(values)])])
        return FeatureTable(self.kind, values, offsets, self.num_values)

    def lengths(self, ids: Tensor) -> Tensor:
        """`[N]` number of values of ragged rows `[N]`."""
        assert self.offsets is not None
        rows = ids.to(self.offsets.device)
        return (self.offsets[rows + 1] - self.offsets[rows]).to(ids.device)

    def padded(self, ids: Tensor, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """The values of ragged rows `[N]` side by side.

        Args:
            ids: Rows `[N]`.
            longest: At most so many values of a row, the first ones.

        Returns:
            `[N, L]` int64 with zeros behind each row's values, and a mask `[N, L]` of these; L is
            at least 1.
        """
        assert self.offsets is not None
        lengths = self.lengths(ids)
        width = max(1, int(lengths.max()) if len(ids) else 1)
        width = width if longest is None else min(width, longest)
        places = torch.arange(width, device=ids.device)
        mask = places < lengths.unsqueeze(1)
        starts = self.offsets[ids.to(self.offsets.device)].to(ids.device)
        where = (starts.unsqueeze(1) + places)[mask]
        values = torch.zeros(len(ids), width, dtype=torch.int64, device=ids.device)
        values[mask] = self.values[where.to(self.values.device)].to(ids.device, torch.int64)
        return values, mask

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Immutable and possibly as large as the catalogue: copies of a model share it.
        return self


class ContentEncoder(nn.Module):
    """What all encoders share: the table they read and the width they give."""

    dim: int

    def __init__(self, table: FeatureTable, dim: int) -> None:
        super().__init__()
        self.table, self.dim = table, dim


class CategoricalEncoder(ContentEncoder):
    """A trainable vector per value; value 0 (unknown) has one too."""

    def __init__(self, table: FeatureTable, dim: int | None) -> None:
        super().__init__(table, dim or DEFAULT_DIM)
        self.embedding = EmbeddingTable(table.num_values, self.dim)

    def forward(self, ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Vectors `[N, dim]` of rows `ids` `[N]`; value 0 where `hidden` `[N]`."""
        table, values = self.lookup(ids)
        vectors: Tensor = table(values if hidden is None else values.masked_fill(hidden, 0))
        return vectors

    def lookup(self, ids: Tensor) -> tuple[EmbeddingTable, Tensor]:
        """The table of vectors, and the rows `[N]` of it that belong to `ids` `[N]`."""
        return self.embedding, self.table.rows(ids).long()


class MultiValuedEncoder(ContentEncoder):
    """The mean of the vectors of a row's values (tags, words, tokens); zeros where it has none."""

    def __init__(self, table: FeatureTable, dim: int | None) -> None:
        super().__init__(table, dim or DEFAULT_DIM)
        self.embedding = EmbeddingTable(table.num_values, self.dim)

    def forward(self, ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Vectors `[N, dim]` of rows `ids` `[N]`; zeros where `hidden` `[N]`."""
        means = self.embedding.mean(*self.table.bags(ids))
        return means if hidden is None else means.masked_fill(hidden.unsqueeze(1), 0.0)


class NumericEncoder(ContentEncoder):
    """The columns as they stand, or through a linear layer where a width is asked for."""

    def __init__(self, table: FeatureTable, dim: int | None) -> None:
        columns = table.values.shape[1]
        super().__init__(table, dim or columns)
        self.layer = nn.Identity() if dim is None else dense_layer(columns, dim)

    def forward(self, ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Vectors `[N, dim]` of rows `ids` `[N]`; those of a missing value where `hidden` `[N]`."""
        values = self.table.rows(ids).float()
        if hidden is not None:
            missing = torch.zeros_like(values[:1])
            if self.table.kind == "numeric":
                missing[:, -1] = 1.0  # the flag
            values = torch.where(hidden.unsqueeze(1), missing, values)
        vectors: Tensor = self.layer(values)
        return vectors


class DenseEncoder(NumericEncoder):
    """Precomputed vectors (text or image encoders) through a linear layer."""

    def __init__(self, table: FeatureTable, dim: int | None) -> None:
        super().__init__(table, dim or DEFAULT_DIM)


DEFAULT_DIM = 32

FEATURE_ENCODERS: dict[str, Callable[[FeatureTable, int | None], ContentEncoder]] = {
    "categorical": CategoricalEncoder,
    "multi_valued": MultiValuedEncoder,
    "tokens": MultiValuedEncoder,
    "numeric": NumericEncoder,
    "dense": DenseEncoder,
}


class FeatureEncoder(nn.Module):
    """All features of a row side by side.

    Args:
        features: Tables by name, all with the same number of rows.
        dims: Width by feature name; others take their kind's own (32, or as many as a numeric
            feature has columns).
        of_events: Names of features whose rows are events, which have ids of their own.
        dropout: Share of all values that training hides, each by itself, so that it learns what a
            missing one means although the data have it always.

    Attributes:
        names: The features in the order of `encoders`.
    """

    def __init__(
        self,
        features: Mapping[str, FeatureTable],
        dims: Mapping[str, int],
        of_events: Collection[str] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if unknown := sorted(set(dims) - set(features)):
            raise ValueError(
                f"feature_dims names {unknown}, but the features are {sorted(features)}"
            )
        if any(width < 1 for width in dims.values()):
            raise ValueError(f"feature_dims must be at least 1, got {dict(dims)}")
        # In the order of names, so that saved weights fit however the mapping was put together; a
        # list, because feature names may hold dots, module names may not.
        self.names = sorted(features)
        encoders = [
            FEATURE_ENCODERS[features[name].kind](features[name], dims.get(name))
            for name in self.names
        ]
        self.dim = sum(encoder.dim for encoder in encoders)
        self.encoders = nn.ModuleList(encoders)
        self.of_events = [name in of_events for name in self.names]
        self.dropout = dropout

    def forward(self, ids: Tensor, event_ids: Tensor | None = None) -> Tensor:
        """Vectors `[N, dim]` of rows `ids` `[N]`.

        Features of events are those of `event_ids` `[N]`, and zero without them.
        """
        if not any(self.of_events):
            return torch.cat([encoder(ids) for encoder in self.encoders], dim=-1)
        parts = []
        for encoder, of_event in zip(self.encoders, self.of_events, strict=True):
            rows = event_ids if of_event else ids
            width = cast("ContentEncoder", encoder).dim
            if rows is None:
                parts.append(torch.zeros(len(ids), width))
            elif self.training and self.dropout > 0:
                hidden = torch.rand(len(rows), device=rows.device) < self.dropout
                parts.append(encoder(rows, hidden))
            else:
                parts.append(encoder(rows))
        return torch.cat([part.to(ids.device) for part in parts], dim=-1)
