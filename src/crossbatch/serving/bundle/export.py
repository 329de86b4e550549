"""`export_bundle`: a bundle from the best model of a run.

export_bundle("runs/first", "first.bundle")
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from crossbatch.data.progress import Progress, silent
from crossbatch.evaluation import encode_items
from crossbatch.evaluation.distributed import encode_together
from crossbatch.files import check_target, read_document
from crossbatch.serving.bundle.manifest import MANIFEST
from crossbatch.serving.bundle.model_files import HistoryEncoder, split_state
from crossbatch.serving.bundle.opening import all_items, open_bundle
from crossbatch.serving.bundle.writing import (
    PROBE_USERS,
    Contents,
    IndexPlan,
    Probe,
    write_bundle,
)
from crossbatch.serving.from_run import feature_names, run_profiles
from crossbatch.training.distributed.start import joined, together
from crossbatch.training.run_folder import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from crossbatch.serving.bundle.opening import Bundle
    from crossbatch.training.run_folder import SavedRun


def export_bundle(
    run: Path | str,
    out: Path | str,
    *,
    name: str | None = None,
    data: Path | None = None,
    index: str = "auto",
    recall: float = 0.99,
    graph_formats: Sequence[str] = ("pt2",),
    overwrite: bool = False,
    progress: Progress = silent,
) -> Bundle:
    """Make a bundle of a run's best model and open it.

    Processes that torchrun started share the encoding of the catalogue; the first one writes.

    Args:
        run: Run folder.
        out: Bundle folder to create.
        name: What to call the bundle; the run folder's name unless given.
        data: Dataset folder, if it is not where training found it.
        index: "auto", "exact" or "ivf"; see `crossbatch.retrieval.choose_index`.
        recall: Share of the exact list of 50 that an approximate index must find.
        graph_formats: Any of "pt2" and "onnx": the user tower for other runtimes.
        overwrite: Replace an existing bundle.
        progress: Called with (stage, done, total).

    Raises:
        DataError: If the run cannot be used, `out` exists, or the bundle's answers differ from the
            run's; nothing is left behind then.
    """
    run, out = Path(run), Path(out)

    def opened() -> SavedRun:
        check_target(out, overwrite=overwrite, marker=MANIFEST)
        progress("items", 0, None)
        return open_run(run, data=data)

    def written() -> Bundle | None:
        if ranks is not None and not ranks.first:
            return None
        return write_bundle(
            out,
            _contents(saved, vectors, history_vectors, run, name or run.resolve().name),
            _held_out_users(saved),
            IndexPlan(index, recall),
            graph_formats=graph_formats,
            overwrite=overwrite,
            progress=progress,
        )

    with joined() as ranks:
        saved = together(ranks, opened)
        encode = encode_items if ranks is None else partial(encode_together, ranks)
        towers, num_items = saved.towers, saved.dataset.num_items
        vectors, history_vectors = encode(towers, num_items), None
        if towers.history == "content":
            history_vectors = encode(HistoryEncoder(towers), num_items)
        return together(ranks, written) or open_bundle(out)


def _held_out_users(saved: SavedRun) -> Probe:
    """Held-out users with the interests that the trained towers give them."""
    split = "test" if saved.dataset.num_eval_users("test") else "valid"
    length = saved.recipe.train.history_length
    batch = next(saved.dataset.eval_batches(split, batch_size=PROBE_USERS, history_length=length))
    with torch.no_grad():
        interests = saved.towers.users(batch.history, batch.user_ids)
    return Probe(batch.history, run_profiles(saved, batch.user_ids), interests)


def _contents(
    saved: SavedRun, vectors: Tensor, history_vectors: Tensor | None, run: Path, name: str
) -> Contents:
    dataset, model = saved.dataset, saved.recipe.model
    item_state, user_state = split_state(saved.towers)
    keys, titles = all_items(dataset)
    measured = run / "result.json"
    metrics = read_document(measured, "train the run again") if measured.is_file() else {}
    return Contents(
        name=name,
        config=replace(
            model,
            item_features=feature_names(model.item_features, dataset.item_features),
            user_features=feature_names(model.user_features, dataset.user_features),
        ),
        history_length=saved.recipe.train.history_length,
        metrics=json.loads(json.dumps(metrics), parse_constant=lambda _: None),  # without NaN
        keys=keys,
        titles=titles,
        counts=np.array(dataset.item_counts),
        vectors=vectors,
        history_vectors=history_vectors,
        item_state=item_state,
        user_state=user_state,
        trained=dataset.num_items,
        features=dataset.path / "features",
        origin={
            "run": run.resolve().name,
            "best_step": saved.best_step,
            "sampler": saved.recipe.sampler["name"],
            "temperature": saved.recipe.loss.temperature,
            "dataset": {
                "checksum": dataset.manifest["checksum"],
                "files": dataset.manifest["source"]["files"],
                "split": dataset.manifest["options"]["split"],
                "counts": dataset.manifest["counts"],
            },
        },
    )
