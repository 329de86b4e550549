"""What Python callers get back: results with attributes, and as data frames.

result = fit(dataset, recipe, "runs/first")
result.best_step, result.test["recall@50"], result.to_frame("pandas")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from crossbatch.errors import ConfigError, check_choice

LIBRARIES = ("polars", "pandas", "pyarrow")
SPLITS = ("valid", "valid_unseen", "test", "test_unseen")
SHOWN_METRICS = ("recall@50", "ndcg@50")


def to_native(table: pl.DataFrame, library: str) -> Any:
    """A polars frame as one of another library."""
    check_choice("library", library, LIBRARIES)
    try:
        if library == "pandas":
            return table.to_pandas()
        return table.to_arrow() if library == "pyarrow" else table
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a {library} frame needs {error.name}: pip install {error.name}, or ask for polars"
        ) from None


class FitResult(dict[str, Any]):
    """The content of `result.json`: a dictionary whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a result has no {name!r}; it has {', '.join(self)}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def to_frame(self, library: str = "polars") -> Any:
        """All metrics in rows of `split`, `metric`, `value`, and `low` and `high` of 95 %.

        Args:
            library: "polars", "pandas" or "pyarrow".
        """
        rows = [
            (split, metric, value, *self.get(f"{split}_ci", {}).get(metric, (None, None)))
            for split in SPLITS
            for metric, value in self.get(split, {}).items()
        ]
        columns = {"split": pl.String, "metric": pl.String, "value": pl.Float64}
        schema = columns | {"low": pl.Float64, "high": pl.Float64}
        return to_native(pl.DataFrame(rows, schema=schema, orient="row"), library)

    def __repr__(self) -> str:
        found = "; ".join(
            f"{split} " + ", ".join(f"{name} {self[split][name]:.4f}" for name in SHOWN_METRICS)
            for split in SPLITS
            if all(name in self.get(split, {}) for name in SHOWN_METRICS)
        )
        steps = f"best at step {self.get('best_step')} of {self.get('steps')}"
        return f"<FitResult of {self.get('model')}: {steps}; {found}>"


@dataclass(frozen=True, repr=False, slots=True)
class Recommendations:
    """Lists of items, best first.

    Attributes:
        table: A polars frame of `user` (or `query`), `rank`, `item`, `title` and `score`.
        queries: Whom or what the lists are for, in the order asked.
        sizes: Number of items of each list.
        popular: Of each, whether nothing was known, so that the list is the most popular items.
        library: The library of `to_frame`, unless it is told another.
    """

    table: pl.DataFrame
    queries: Sequence[Any]
    sizes: Sequence[int]
    popular: Sequence[bool]
    library: str = "polars"

    @property
    def items(self) -> list[list[Any]]:
        """Keys of the items of each list."""
        return list(self)

    def to_frame(self, library: str | None = None) -> Any:
        """All lists as one frame: by default of the library that the model was fitted with."""
        return to_native(self.table, library or self.library)

    def __len__(self) -> int:
        return len(self.queries)

    def __iter__(self) -> Iterator[list[Any]]:
        keys, start = self.table["item"].to_list(), 0
        for size in self.sizes:
            yield keys[start : start + size]
            start += size

    def __getitem__(self, number: int) -> list[Any]:
        """Keys of the items of one list, by its place among the queries."""
        return self.items[number]

    def __repr__(self) -> str:
        return f"<Recommendations: {len(self)} lists>\n{self.table}"
