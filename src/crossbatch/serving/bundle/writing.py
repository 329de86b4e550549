"""How any bundle comes into being: parts, index, graphs, proof, card, manifest, rename."""

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
from crossbatch.serving.bundle import towers as stored_towers
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from crossbatch.config import ModelConfig
    from crossbatch.data.progress import Progress
    from crossbatch.retrieval import ExactIndex, IndexFacts


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
        history_vectors: `[N + 1, w]` what describes items in a history, where that is neither
            `vectors` nor their id vectors.
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
    history_vectors: Tensor | None
    item_state: Mapping[str, Tensor]
    user_state: Mapping[str, Tensor]
    trained: int
    features: Path
    origin: dict[str, Any]


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """Which index a bundle shall have.

    Attributes:
        asked: One of `crossbatch.retrieval.choice.CHOICES`.
        recall: Share of the exact list of 50 that it must find.
        cells: An index whose cells are kept as learned, if there is one.
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
    """Write a bundle that proves itself before it gets its name, and open it.

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
        asked = {"asked": plan.asked, "target": plan.recall}
        facts = _facts(contents) | {"index": asdict(measured) | asked}
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
    stored_towers.save_tensors(folder / stored_towers.ITEM_TOWER, contents.item_state)
    stored_towers.save_tensors(folder / stored_towers.USER_TOWER, contents.user_state)
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
    """Write the graphs and return how far their answers are from the truth."""
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
