"""Open whatever answers: a bundle, or the run folder that a bundle would be made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.errors import DataError
from crossbatch.serving.bundle import open_bundle
from crossbatch.serving.from_run import run_recommender
from crossbatch.serving.manifest import MANIFEST
from crossbatch.training.saved import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.serving.recommender import Recommender

RUN = "config.json"


def open_recommender(path: Path, *, data: Path | None = None) -> Recommender:
    """Open a bundle folder or a run folder.

    Args:
        path: The folder.
        data: Of a run, the dataset folder if it has moved since training.
    """
    if (path / MANIFEST).is_file():
        return open_bundle(path)
    if (path / RUN).is_file():
        return run_recommender(open_run(path, data=data))
    raise DataError(f"{path} is neither a bundle (no {MANIFEST}) nor a run folder (no {RUN})")
