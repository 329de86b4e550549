"""Whether a dataset folder is as `crossbatch prepare` wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.errors import ConfigError, DataError
from crossbatch.health.finding import Finding, note, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def files(folder: Path) -> Iterator[Finding]:
    """Format version, every array, every checksum."""
    from crossbatch.data import open_dataset

    try:
        dataset = open_dataset(folder)
        dataset.verify()
    except DataError as error:
        yield problem("files", str(error), "crossbatch prepare SOURCE --out DATASET --overwrite")
        return
    manifest = dataset.manifest
    yield ok(
        "files",
        f"format {manifest['format_version']}, {len(manifest['files'])} files as written: "
        f"{dataset.num_users:,} users, {dataset.num_items:,} items",
    )


def negatives(folder: Path) -> Iterator[Finding]:
    """Which sampler a recipe without further wishes would get, measured on its towers."""
    from crossbatch.config import Recipe
    from crossbatch.data import open_dataset
    from crossbatch.training.advice import advise

    try:
        dataset = open_dataset(folder)
        dataset.verify()  # kernels trust what they read
    except DataError:
        return  # reported by `files`
    try:
        yield ok("negatives", str(advise(Recipe(), dataset)))
    except ConfigError as error:  # a dataset can be too small for the usual batch
        yield note("negatives", str(error), "set train.batch_size in the recipe")
