"""Whether a dataset folder is as `crossbatch prepare` wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.errors import DataError
from crossbatch.health.finding import Finding, ok, problem

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
