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

from crossbatch.errors import ConfigError, DataError
from crossbatch.evaluation import encode_items
from crossbatch.evaluation.evaluator import encode_together
from crossbatch.files import check_target, read_document
from crossbatch.progress import Progress, silent
from crossbatch.queries import feature_rows
from crossbatch.serving.bundle.filter_columns import declared_columns
from crossbatch.serving.bundle.graph import UserSide, ids_as_vectors, traced
from crossbatch.serving.bundle.manifest import MANIFEST
from crossbatch.serving.bundle.model_files import HistoryEncoder, split_state
from crossbatch.serving.bundle.opening import Bundle, all_items, open_bundle
from crossbatch.serving.bundle.writing import PROBE_USERS, Contents, IndexPlan, Probe, write_bundle
from crossbatch.serving.from_run import feature_names, request_features, run_profiles, user_side
from crossbatch.training.distributed.start import joined, together
from crossbatch.training.run_folder import SavedRun, open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from torch import Tensor

    from crossbatch.config import ModelConfig
    from crossbatch.serving.bundle.core_graph import GraphData


def export_bundle(
    run: Path | str,
    out: Path | str,
    *,
    name: str | None = None,
    data: Path | str | None = None,
    index: str = "auto",
    recall: float = 0.99,
    graph_formats: Sequence[str] = ("pt2",),
    filter_columns: Sequence[str] = (),
    items: pl.DataFrame | None = None,
    key: str = "item",
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
        filter_columns: Columns that requests may filter by, `NAME` or `NAME:KIND`: of `items`, or
            features of the dataset's items.
        items: A row for each item, with its key and such columns.
        key: Its column of item keys.
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
            _contents(
                saved,
                vectors,
                history_vectors,
                run,
                name or run.resolve().name,
                _program(saved, users, vectors, history_vectors, graph="pt2" in graph_formats),
                filters,
            ),
            _held_out_users(saved),
            IndexPlan(index, recall),
            graph_formats=graph_formats,
            overwrite=overwrite,
            progress=progress,
        )

    with joined() as ranks:
        saved = together(ranks, opened)
        filters = declared_columns(saved.dataset, filter_columns, items, key)
        encode = encode_items if ranks is None else partial(encode_together, ranks)
        encode = partial(encode, on_items=partial(progress, "items"))
        towers, num_items = saved.towers, saved.dataset.num_items
        users, vectors, history_vectors = user_side(saved), encode(towers, num_items), None
        if users is not None and users.by_ids:
            history_vectors = ids_as_vectors(num_items)
        elif stores_history(saved.recipe.model):
            history_vectors = encode(HistoryEncoder(towers), num_items)
        return together(ranks, written) or open_bundle(out)


def _held_out_users(saved: SavedRun) -> Probe:
    """Held-out users with the interests that the trained towers give them."""
    split = "test" if saved.dataset.num_eval_users("test") else "valid"
    length = saved.recipe.train.history_length
    batch = next(saved.dataset.eval_batches(split, batch_size=PROBE_USERS, history_length=length))
    with torch.no_grad():
        interests = saved.towers.users(batch.history, *feature_rows(saved.towers, batch))
    profiles = run_profiles(saved, batch.user_ids, batch.event_ids)
    return Probe(batch.history, profiles, interests)


def stores_history(model: ModelConfig) -> bool:
    """Whether a bundle has vectors of what histories read, beside item vectors and id table."""
    own_items = bool(model.item_tower) and model.history == "id"
    return bool(model.model) or model.history == "content" or own_items


def _program(
    saved: SavedRun,
    users: UserSide | None,
    vectors: Tensor,
    history_vectors: Tensor | None,
    *,
    graph: bool,
) -> tuple[GraphData, bool] | None:
    """The graph of a user side of foreign code, and whether it reads ids; None for no graph."""
    if users is None:
        return None
    if not graph:
        if saved.recipe.model.model:
            raise ConfigError("a whole model of your own is exported as a graph: omit --no-graph")
        return None
    width = (vectors if history_vectors is None else history_vectors).shape[1]
    try:
        found = traced(users, width, saved.recipe.train.history_length)
    except DataError as error:
        remedy = "name its user tower alone as model.user_tower and pass --no-graph"
        remedy = remedy if saved.recipe.model.model else "pass --no-graph, and --allow-code later"
        raise DataError(f"{error}; {remedy}") from None
    return found, users.by_ids


def _contents(
    saved: SavedRun,
    vectors: Tensor,
    history_vectors: Tensor | None,
    run: Path,
    name: str,
    program: tuple[GraphData, bool] | None,
    filters: pl.DataFrame | None,
) -> Contents:
    dataset, model = saved.dataset, saved.recipe.model
    item_state, user_state = split_state(saved.towers)
    keys, titles = all_items(dataset)
    of_users, of_requests = request_features(saved)
    measured = run / "result.json"
    metrics = read_document(measured, "train the run again") if measured.is_file() else {}
    return Contents(
        name=name,
        config=replace(
            model,
            item_features=feature_names(model.item_features, dataset.item_features),
            user_features=of_users,
            context=of_requests,
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
        program=program[0] if program else None,
        reads_ids=bool(program and program[1]),
        filters=filters,
    )
