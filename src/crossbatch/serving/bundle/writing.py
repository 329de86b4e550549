"""`write_bundle`: write a bundle's parts, build its index, check it, describe it, rename it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crossbatch.errors import ConfigError, DataError
from crossbatch.files import atomic_folder, write_document
from crossbatch.retrieval import IVFIndex, choose_index
from crossbatch.retrieval.choice import LIST, measure, tune
from crossbatch.serving.bundle import graph as graphs
from crossbatch.serving.bundle import parity
from crossbatch.serving.bundle.catalogue import write_catalogue
from crossbatch.serving.bundle.feature_schema import copy_schema
from crossbatch.serving.bundle.manifest import MANIFEST, write_manifest
from crossbatch.serving.bundle.model_card import model_card
from crossbatch.serving.bundle.opening import (
    CARD,
    CONFIG,
    HISTORY_VECTORS,
    INDEX,
    ITEM_VECTORS,
    ITEMS,
    METRICS,
    USERS,
    Bundle,
    open_bundle,
)
from crossbatch.serving.bundle.towers import ITEM_TOWER, USER_TOWER, save_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from crossbatch.config import ModelConfig
    from crossbatch.data.progress import Progress
    from crossbatch.retrieval import ExactIndex, IndexFacts


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a bundle, except what is derived from it; N items, row 0 is padding."""

    name: str
    config: ModelConfig  # with the names of its features written out
    history_length: int
    metrics: dict[str, Any]  # what training measured
    keys: Sequence[str]  # [N + 1]
    titles: Sequence[str]  # [N + 1], empty where there is none
    counts: np.ndarray  # [N + 1] int64
    vectors: Tensor  # [N + 1, d]
    history_vectors: Tensor | None  # [N + 1, w], only where histories are read through content
    item_state: Mapping[str, Tensor]  # weights of the item tower
    user_state: Mapping[str, Tensor]  # all other weights
    trained: int  # items 1 … this took part in training, later ones are encoded by content
    features: Path  # folder with the schemas `items` and `users`
    origin: dict[str, Any]  # where the bundle comes from; JSON


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """Which index to build.

    Attributes:
        asked: One of `crossbatch.retrieval.choice.CHOICES`.
        recall: Share of the exact list of 50 that it must find.
        cells: An index whose learned cells are kept, if there is one.
    """

    asked: str = "auto"
    recall: float = 0.99
    cells: IVFIndex | None = None

    def build(self, vectors: Tensor, interests: Tensor) -> tuple[ExactIndex | IVFIndex, IndexFacts]:
        """Build it over item vectors `[N + 1, d]` and measure it on interests `[U, K, d]`."""
        try:
            if self.cells is None:
                index, facts = choose_index(vectors, interests, name=self.asked, target=self.recall)
            else:
                index = self.cells.over(vectors)
                tune(index, interests, LIST, self.recall)
                facts = measure(index, interests, LIST)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"no index could be made: {error}") from None
        if facts.recall < self.recall:
            raise DataError(
                f"the index finds {facts.recall:.4f} of the exact lists, less than the "
                f"{self.recall:g} asked for: pass --index exact, or a lower --recall"
            )
        return index, facts


def write_bundle(
    out: Path,
    contents: Contents,
    probe: parity.Probe,
    plan: IndexPlan,
    *,
    graph_formats: Sequence[str],
    overwrite: bool,
    progress: Progress,
) -> Bundle:
    """Write a bundle, compare its answers with the expected ones, rename it to `out` and open it.

    Args:
        out: The folder to create.
        contents: What goes in.
        probe: Users whose answers are known.
        plan: Which index to build over the item vectors.
        graph_formats: Any of "pt2" and "onnx".
        overwrite: Replace an existing bundle.
        progress: Called with (stage, done, total).
    """
    with atomic_folder(out, overwrite=overwrite, marker=MANIFEST) as folder:
        progress("writing", 0, None)
        _write_parts(folder, contents)
        progress("index", 0, None)
        index, measured = plan.build(contents.vectors, probe.interests)
        if isinstance(index, IVFIndex):
            index.save(folder / INDEX)
        facts = _facts(contents)
        facts["index"] = asdict(measured) | {"asked": plan.asked, "target": plan.recall}
        bundle = Bundle(folder, facts)
        progress("parity", 0, None)
        facts["interests"] = bundle.num_interests
        facts["parity"] = {"users": len(probe.history), "tolerance": parity.TOLERANCE}
        facts["parity"] |= parity.compare(bundle, probe, contents.vectors)
        progress("graphs", 0, None)
        facts["parity"] |= _write_graphs(folder, bundle, probe, graph_formats)
        (folder / CARD).write_text(model_card(bundle, facts), encoding="utf-8")
        progress("checksums", 0, None)
        write_manifest(folder, facts)
    return open_bundle(out, verify=False)


def _write_parts(folder: Path, contents: Contents) -> None:
    save_tensors(folder / ITEM_TOWER, contents.item_state)
    save_tensors(folder / USER_TOWER, contents.user_state)
    np.save(folder / ITEM_VECTORS, contents.vectors.numpy())
    if contents.history_vectors is not None:
        np.save(folder / HISTORY_VECTORS, contents.history_vectors.numpy())
    write_catalogue(folder, contents.keys, contents.titles, contents.counts)
    copy_schema(contents.features / "items", folder / ITEMS, contents.config.item_features)
    copy_schema(contents.features / "users", folder / USERS, contents.config.user_features)
    config = {"model": asdict(contents.config), "history_length": contents.history_length}
    write_document(folder / CONFIG, config)
    write_document(folder / METRICS, contents.metrics)


def _write_graphs(
    folder: Path, bundle: Bundle, probe: parity.Probe, formats: Sequence[str]
) -> dict[str, float]:
    """Write the graphs and return how far their answers are from the expected ones."""
    if not formats:
        return {}
    graph = graphs.UserGraph(bundle, bundle.user_features)
    program = graphs.export_graph(graph, bundle.history_length)
    inputs = graph.inputs(probe.history, probe.profiles)
    found = {}
    if "pt2" in formats:
        graphs.write_pt2(folder / graphs.PT2, program)
        with torch.no_grad():
            answers = program.module()(*inputs)
        found["pt2"] = parity.difference("the exported graph's vectors", answers, probe.interests)
    if "onnx" in formats:
        graphs.write_onnx(folder / graphs.ONNX, program, graph.input_names())
        answers = graphs.run_onnx(folder / graphs.ONNX, inputs)
        found["onnx"] = parity.difference("the ONNX graph's vectors", answers, probe.interests)
    return found


def _facts(contents: Contents) -> dict[str, Any]:
    return {
        "name": contents.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "made_by": {"crossbatch": version("crossbatch"), "torch": torch.__version__},
        "model": contents.config.name,
        "items": {"count": len(contents.keys) - 1, "trained": contents.trained},
        "dim": contents.vectors.shape[1],
        "origin": contents.origin,
    }
