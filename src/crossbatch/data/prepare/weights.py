"""Weights of events: of their kinds, of their rows, and as sums that targets are drawn by."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import ArrayWriter
from crossbatch.data.prepare.rest import FOLDER
from crossbatch.errors import DataError
from crossbatch.files import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crossbatch.data.prepare.event_columns import Append

MOST_WEIGHT = 1e9
FINE = 1_000_000  # weights that are no whole numbers are kept in millionths
STATE = f"{FOLDER}/weight.json"
MOST_TOTAL = 2.0**62  # of an int64 sum


def with_weights(
    frame: pl.DataFrame, event_weights: Mapping[str, float] | None
) -> tuple[pl.DataFrame, int]:
    """Return rows with their weight, null where it is unusable, and how many are of other kinds.

    The weight is that of the kind of event times that of the row; an event of a kind without a
    weight is left out.
    """
    if "event" not in frame.columns and "weight" not in frame.columns:
        return frame, 0
    weight = pl.lit(1.0)
    if "weight" in frame.columns:
        given = pl.col("weight").cast(pl.Float64, strict=False)
        weight = pl.when((given >= 0) & (given <= MOST_WEIGHT)).then(given)
    left_out = 0
    if event_weights is not None:
        kinds = frame["event"].cast(pl.String).str.strip_chars()
        of_kind = kinds.replace_strict(dict(event_weights), default=None, return_dtype=pl.Float64)
        frame = frame.with_columns(of_kind.alias("event"))
        left_out = of_kind.null_count()
        frame = frame.filter(pl.col("event").is_not_null()) if left_out else frame
        weight = weight * pl.col("event")
    return frame.with_columns(weight.alias("weight")), left_out


def weight_summary(weights: np.ndarray) -> list[float]:
    """Return whether weights are whole numbers, and their sum."""
    return [float((weights == np.rint(weights)).all()), float(weights.sum())]


class WeightColumn:
    """Weights, as `weight_offsets.npy`: whole numbers that add up, so that draws are exact."""

    name, dtype = "weight", np.float64

    def __init__(self) -> None:
        self._whole, self._total = True, 0.0

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the weights of usable rows.  `[n]`, float64."""
        weights = self.numbers(frame)
        self.learn(weight_summary(weights))
        return weights

    def numbers(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the weights of rows, and learn nothing of them.  `[n]`, float64."""
        return frame["weight"].to_numpy()

    def learn(self, summary: list[float]) -> None:
        """Take account of weights by their `weight_summary`."""
        self._whole &= bool(summary[0])
        self._total += summary[1]

    def keep(self, dataset: Path) -> None:
        """Write whether all weights are whole numbers, and their sum."""
        write_document(dataset / STATE, {"whole": self._whole, "total": self._total})

    def resume(self, dataset: Path) -> None:
        """Read what was kept."""
        kept = read_document(dataset / STATE, "prepare the dataset again")
        try:
            self._whole, self._total = bool(kept["whole"]), float(kept["total"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{dataset / STATE} is broken ({error}): prepare it again") from None

    @contextmanager
    def writer(self, folder: Path, total: int) -> Iterator[Append]:
        """Write `[total + 1]` sums of the weights before each interaction, and of all.  int64."""
        unit = 1 if self._whole else FINE
        if self._total * unit > MOST_TOTAL:
            raise DataError(f"the weights add up to {self._total:g}: divide them by a large number")
        with ArrayWriter(folder / "weight_offsets.npy", np.int64, total + 1) as array:
            last = 0
            array.append(np.zeros(1, dtype=np.int64))

            def append(rows: np.ndarray) -> None:
                nonlocal last
                units = np.rint(rows["weight"] * unit)
                units[(units == 0) & (rows["weight"] > 0)] = 1  # not history alone
                sums = last + np.cumsum(units.astype(np.int64))
                array.append(sums)
                last = int(sums[-1]) if len(sums) else last

            yield append
