"""Whether a bundle is as `crossbatch export` wrote it, and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.health.finding import Finding, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def files(folder: Path) -> Iterator[Finding]:
    """Format version, every checksum, and one answer."""
    from crossbatch.serving import BundleError, open_bundle

    try:
        bundle = open_bundle(folder)
    except BundleError as error:
        yield problem("files", str(error), "crossbatch export RUN --out BUNDLE --overwrite")
        return
    yield ok(
        "files",
        f"format {bundle.manifest['format_version']}, {len(bundle.manifest['files'])} files as "
        f"written: {bundle.num_items:,} items, version {bundle.version}",
    )
    (answer,) = bundle.recommend([bundle.item_keys([1])], 1)
    yield ok("answer", f"recommends {len(answer.items)} item for a history of one")
