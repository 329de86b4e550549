"""Precomputed vectors of items, such as image embeddings, from files keyed by item id.

vectors = open_vectors("image", Path("image.npy"))       # beside it image.keys.txt, one key a line
present = write_vectors(folder / "00.npy", keys, vectors)

Sources are a `.npy` of rows with their keys beside it, a Parquet file with a column of keys and one
of lists, or a folder with a `KEY.npy` for each item. They are read and written in pieces: a
catalogue's vectors are never in memory as a whole, neither here nor in training, which maps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import map_array
from crossbatch.errors import ConfigError, DataError

PIECE = 4_096  # vectors at a time
LARGEST = float(np.finfo(np.float16).max)
KEY_NAMES = ("item", "item_id", "itemId", "itemid", "iid", "asin", "movieId", "product_id", "key")

Piece = tuple[np.ndarray, np.ndarray]  # rows [n] and their vectors [n, width]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of items by their keys.

    Attributes:
        name: Of the feature.
        width: Numbers of a vector.
        pieces: `pieces(keys)` yields which of the keys `[R]` have vectors, and these, in pieces.
    """

    name: str
    width: int
    pieces: Callable[[pl.Series], Iterator[Piece]]


def open_vectors(name: str, path: Path) -> Vectors:
    """Open the vectors of a `.npy` file, a Parquet file or a folder."""
    if path.is_dir():
        return _folder(name, path)
    if not path.is_file():
        raise ConfigError(f"the vectors {name!r} must be a file or folder, got {path}")
    if path.suffix == ".npy":
        return _array(name, path)
    if path.suffix in (".parquet", ".pq"):
        return _parquet(name, path)
    raise ConfigError(
        f"the vectors {name!r} must be a .npy file, a .parquet file or a folder, got {path}"
    )


def write_vectors(
    path: Path, keys: pl.Series, vectors: Vectors, known: np.ndarray | None = None
) -> np.ndarray:
    """Write a `.npy` with a row for each key `[R]`, float16; zeros where there is no vector.

    Returns which rows have one, `[R]` bool. Where there is no newer vector, the rows of an earlier
    dataset, `known`, stay.
    """
    if known is not None and known.shape[1] != vectors.width:
        raise DataError(
            f"the dataset has vectors of {known.shape[1]} numbers, the new ones have "
            f"{vectors.width}"
        )
    shape = (len(keys), vectors.width)
    out = np.lib.format.open_memmap(path, mode="w+", dtype="<f2", shape=shape)
    found = np.zeros(len(keys), dtype=bool)
    if known is not None:
        for first in range(0, len(known), PIECE):
            piece = known[first : first + PIECE]
            out[first : first + len(piece)] = piece
            found[first : first + len(piece)] = (piece != 0).any(axis=1)
    for rows, values in vectors.pieces(keys):
        if not (np.abs(values) <= LARGEST).all():
            bad = values[~(np.abs(values) <= LARGEST)][0]
            raise DataError(
                f"the vectors {vectors.name!r} must hold numbers between ±{LARGEST:g}, got {bad}"
            )
        out[rows] = values
        found[rows] = True
    out.flush()
    return found


def _pieces(
    stored: pl.Series, read: Callable[[np.ndarray], np.ndarray], wanted: pl.Series
) -> Iterator[Piece]:
    """Yield the rows of `wanted` keys that are `stored`, and what `read` gives of their places.

    Of a key that is stored several times it is the first place.
    """
    known = pl.DataFrame({"key": stored.cast(pl.String)}).with_row_index("place")
    known = known.unique("key", keep="first", maintain_order=True).drop_nulls("key")
    rows = pl.DataFrame({"key": wanted.cast(pl.String)}).with_row_index("row").drop_nulls("key")
    both = rows.join(known, on="key", how="inner").sort("place")
    for part in both.iter_slices(PIECE):
        yield part["row"].to_numpy(), read(part["place"].to_numpy())


def _array(name: str, path: Path) -> Vectors:
    values = map_array(path)
    if values.ndim != 2 or not np.issubdtype(values.dtype, np.floating) or not values.shape[1]:
        raise DataError(
            f"{path} must hold floating-point numbers of shape [items, width], got {values.dtype} "
            f"of shape {list(values.shape)}"
        )
    beside = path.with_suffix(".keys.txt")
    if not beside.is_file():
        raise ConfigError(
            f"{path} needs the items' keys beside it: write them to {beside}, one a line in the "
            "order of the rows"
        )
    keys = pl.Series(beside.read_text(encoding="utf-8").splitlines(), dtype=pl.String)
    if len(keys) != len(values):
        raise DataError(f"{beside} has {len(keys):,} keys, but {path} has {len(values):,} rows")

    return Vectors(name, values.shape[1], partial(_pieces, keys, lambda places: values[places]))


def _parquet(name: str, path: Path) -> Vectors:
    try:
        frame = pl.scan_parquet(path)
        schema = frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from None
    lists = [
        column
        for column, dtype in schema.items()
        if isinstance(dtype, (pl.List, pl.Array)) and dtype.inner.is_numeric()
    ]
    column = name if name in lists else lists[0] if len(lists) == 1 else None
    key = next((each for each in KEY_NAMES if each in schema), None)
    if column is None or key is None:
        raise ConfigError(
            f"{path} needs a column of keys ({', '.join(KEY_NAMES)}) and a list of numbers in a "
            f"column {name!r}, or in one column alone; its columns are {', '.join(schema)}"
        )
    chosen = frame.select(pl.col(key).cast(pl.String).alias("key"), pl.col(column).alias("vector"))
    first = chosen.drop_nulls().head(1).collect()
    if not len(first) or not len(first["vector"][0]):
        raise DataError(f"{path} holds no vectors in column {column!r}")
    return Vectors(name, len(first["vector"][0]), partial(_parquet_pieces, path, chosen))


def _parquet_pieces(path: Path, chosen: pl.LazyFrame, wanted: pl.Series) -> Iterator[Piece]:
    rows_of = pl.DataFrame({"key": wanted.cast(pl.String)}).with_row_index("row").drop_nulls()
    seen = np.zeros(len(wanted), dtype=bool)
    width = None
    for batch in chosen.collect_batches(maintain_order=True, chunk_size=PIECE):
        found = batch.drop_nulls().unique("key", keep="first", maintain_order=True)
        found = found.join(rows_of, on="key", how="inner", maintain_order="left")
        found = found.filter(pl.Series(~seen[found["row"].to_numpy()]))  # the first of repeated
        if not len(found):
            continue
        vectors = found["vector"].cast(pl.List(pl.Float32))
        sizes = vectors.list.len()
        width = width or sizes[0]
        if (sizes != width).any():
            raise DataError(
                f"{path} must have vectors of {width} numbers, got one of "
                f"{sizes.filter(sizes != width)[0]}"
            )
        rows = found["row"].to_numpy()
        seen[rows] = True
        yield rows, vectors.explode().to_numpy().reshape(-1, width)


def _folder(name: str, path: Path) -> Vectors:
    # Files are matched with keys, not keys made into names: a key may be any text.
    files = {file.name.removesuffix(".npy"): file for file in sorted(path.glob("*.npy"))}
    if not files:
        raise DataError(f"the folder {path} holds no KEY.npy files of vectors")
    paths, keys = list(files.values()), pl.Series(list(files), dtype=pl.String)
    width = len(_one(paths[0], None))

    def read(places: np.ndarray) -> np.ndarray:
        return np.stack([_one(paths[place], width) for place in places])

    return Vectors(name, width, partial(_pieces, keys, read))


def _one(path: Path, width: int | None) -> np.ndarray:
    vector = map_array(path).reshape(-1)
    if not np.issubdtype(vector.dtype, np.floating) or len(vector) != (width or len(vector) or 1):
        raise DataError(
            f"{path} must hold {width or 'some'} floating-point numbers, got {len(vector)} of "
            f"{vector.dtype}"
        )
    return vector
