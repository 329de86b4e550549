"""`export_bundle`: from a finished run to a bundle that has proved itself, or to nothing.

export_bundle("runs/first", "first.bundle")
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crossbatch.data.folder import atomic_folder, check_free
from crossbatch.data.progress import Progress, silent
from crossbatch.serving import towers as stored_towers
from crossbatch.serving.bundle import (
    CONFIG,
    ITEM_VECTORS,
    ITEMS,
    METRICS,
    USERS,
    Bundle,
    open_bundle,
)
from crossbatch.serving.catalogue import all_items, write_catalogue
from crossbatch.serving.from_run import run_recommender
from crossbatch.serving.manifest import MANIFEST, write_manifest
from crossbatch.serving.schema import copy_schema
from crossbatch.training.saved import open_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from crossbatch.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Contents:
    """All that makes a bundle, but for what is derived from it.

    Attributes:
        name: What the bundle is called.
        config: The model, with the names of its features written out.
        history_length: Most recent items that describe a user.
        metrics: What training measured.
        keys: Of items 0 … N; row 0 is padding.
        titles: Likewise; empty where there is none.
        counts: Likewise, int64.
        vectors: `[N + 1, d]`.
        item_state: Weights of the item tower.
        user_state: All other weights.
        trained: Items 1 … this took part in training; those after it are known by content.
        features: Folder with `items` and `users` schemas.
        origin: Where the bundle comes from; JSON.
    """

    name: str
    config: ModelConfig
    history_length: int
    metrics: dict[str, Any]
    keys: Sequence[str]
    titles: Sequence[str]
    counts: np.ndarray
    vectors: Tensor
    item_state: Mapping[str, Tensor]
    user_state: Mapping[str, Tensor]
    trained: int
    features: Path
    origin: dict[str, Any]


def export_bundle(
    run: Path | str,
    out: Path | str,
    *,
    name: str | None = None,
    data: Path | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Bundle:
    """Make a bundle of a run's best model and open it.

    Args:
        run: Run folder.
        out: Bundle folder to create.
        name: What to call the bundle; the run folder's name unless given.
        data: Dataset folder, if it is not where training found it.
        overwrite: Replace an existing bundle.
        progress: Called with (stage, done, total).

    Raises:
        DataError: If the run cannot be used, `out` exists, or the bundle's answers differ from the
            run's; nothing is left behind then.
    """
    run, out = Path(run), Path(out)
    check_free(out, overwrite=overwrite, marker=MANIFEST)
    contents = contents_of_run(run, name=name, data=data, progress=progress)
    with atomic_folder(out, overwrite=overwrite, marker=MANIFEST) as folder:
        write_parts(folder, contents)
        progress("checksums", 0, None)
        write_manifest(folder, facts(contents))
        open_bundle(folder)
    return open_bundle(out, verify=False)


def contents_of_run(
    run: Path, *, name: str | None, data: Path | None, progress: Progress
) -> Contents:
    """Encode the catalogue and gather all else that a bundle of this run holds."""
    progress("items", 0, None)
    saved = open_run(run, data=data)
    recommender = run_recommender(saved)
    item_state, user_state = stored_towers.split_state(saved.towers)
    keys, titles = all_items(saved.dataset)
    model = saved.recipe.model
    config = replace(
        model,
        item_features=_chosen(model.item_features, saved.dataset.item_features),
        user_features=_chosen(model.user_features, saved.dataset.user_features),
    )
    return Contents(
        name=name or run.resolve().name,
        config=config,
        history_length=saved.recipe.train.history_length,
        metrics=_result(run),
        keys=keys,
        titles=titles,
        counts=np.array(saved.dataset.item_counts),
        vectors=recommender.item_vectors,
        item_state=item_state,
        user_state=user_state,
        trained=saved.dataset.num_items,
        features=saved.dataset.path / "features",
        origin={
            "run": run.resolve().name,
            "best_step": saved.best_step,
            "sampler": saved.recipe.sampler["name"],
            "dataset": saved.dataset.manifest["checksum"],
            "dataset_counts": saved.dataset.manifest["counts"],
        },
    )


def write_parts(folder: Path, contents: Contents) -> None:
    """Write everything but the manifest."""
    stored_towers.save_tensors(folder / stored_towers.ITEM_TOWER, contents.item_state)
    stored_towers.save_tensors(folder / stored_towers.USER_TOWER, contents.user_state)
    np.save(folder / ITEM_VECTORS, contents.vectors.numpy())
    write_catalogue(folder, contents.keys, contents.titles, contents.counts)
    copy_schema(contents.features / "items", folder / ITEMS, contents.config.item_features)
    copy_schema(contents.features / "users", folder / USERS, contents.config.user_features)
    config = {"model": asdict(contents.config), "history_length": contents.history_length}
    _write_json(folder / CONFIG, config)
    _write_json(folder / METRICS, contents.metrics)


def facts(contents: Contents) -> dict[str, Any]:
    """What the manifest says of a bundle besides its files."""
    return {
        "name": contents.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "made_by": {"crossbatch": version("crossbatch"), "torch": torch.__version__},
        "model": contents.config.name,
        "items": {"count": len(contents.keys) - 1, "trained": contents.trained},
        "dim": contents.vectors.shape[1],
        "origin": contents.origin,
    }


def _chosen(wanted: Sequence[str], features: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(features) if tuple(wanted) == ("*",) else tuple(wanted)


def _result(run: Path) -> dict[str, Any]:
    path = run / "result.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return result


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
