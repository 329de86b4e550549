"""`write_bundle`: write a bundle's parts, build its index, check it, describe it, rename it.

The check: a bundle must answer as the model that it was made of, or nothing is written.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from crossbatch.errors import ConfigError, DataError
from crossbatch.files import atomic_folder, write_document
from crossbatch.kernels.memory import return_freed_memory
from crossbatch.printing import printable
from crossbatch.queries import Queries, weights_of
from crossbatch.reports.markdown import literal
from crossbatch.retrieval import ExactIndex, IndexFacts, IVFIndex, choose_index
from crossbatch.retrieval.choice import LIST, measure, tune
from crossbatch.serving.bundle import core_graph
from crossbatch.serving.bundle import graph as graphs
from crossbatch.serving.bundle.manifest import MANIFEST, write_manifest
from crossbatch.serving.bundle.model_files import ITEM_TOWER, USER_TOWER, copy_schema, save_tensors
from crossbatch.serving.bundle.opening import (
    CARD,
    CONFIG,
    CONTEXT,
    FILTERS,
    HISTORY_VECTORS,
    INDEX,
    ITEM_VECTORS,
    ITEMS,
    METRICS,
    USER_PROGRAM,
    USERS,
    Bundle,
    open_bundle,
    write_catalogue,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl
    from torch import Tensor

    from crossbatch.config import ModelConfig
    from crossbatch.progress import Progress
    from crossbatch.serving.bundle.core_graph import GraphData
    from crossbatch.serving.recommender import Recommender
    from crossbatch.serving.user_features import Profiles

PROBE_USERS = 256
TOLERANCE = 1e-4  # of the largest number: far above float rounding, far below any real difference
PLAIN_KEY = re.compile(r"[\w.:-]{1,80}\Z", re.ASCII)
SHOWN_METRICS = ("recall@20", "recall@50", "hit_rate@50", "ndcg@50", "cold_recall@50")


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
    history_vectors: Tensor | None  # [N + 1, w], where they are neither item vectors nor id rows
    item_state: Mapping[str, Tensor]  # weights of the item tower
    user_state: Mapping[str, Tensor]  # all other weights
    trained: int  # items 1 … this took part in training, later ones are encoded by content
    features: Path  # folder with the schemas `items`, `users` and `context`
    origin: dict[str, Any]  # where the bundle comes from; JSON
    program: GraphData | None = None  # the user side of a model of foreign code
    reads_ids: bool = False  # whether that reads ids, which the history vectors are then
    filters: pl.DataFrame | None = None  # filter columns, a row for each of the items 1 … N


@dataclass(frozen=True, slots=True)
class Probe:
    """Users with the interests that the original model gives them."""

    history: Tensor  # [U, L], item ids of the bundle that is checked
    profiles: Profiles | None  # their features, if the model reads any
    interests: Tensor | Queries  # [U, K, d]


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """Which index to build."""

    asked: str = "auto"  # one of `crossbatch.retrieval.choice.CHOICES`
    recall: float = 0.99  # share of the exact list of 50 that it must find
    cells: IVFIndex | None = None  # an index whose learned cells are kept

    def build(
        self, vectors: Tensor, interests: Tensor | Queries
    ) -> tuple[ExactIndex | IVFIndex, IndexFacts]:
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
    probe: Probe,
    plan: IndexPlan,
    *,
    graph_formats: Sequence[str],
    overwrite: bool,
    progress: Progress,
) -> Bundle:
    """Write a bundle, compare its answers with the expected ones, rename it to `out` and open it.

    `graph_formats` are any of "pt2" and "onnx"; `progress` is called with (stage, done, total).
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
        facts["parity"] = {"users": len(probe.history), "tolerance": TOLERANCE}
        facts["parity"] |= compare(bundle, probe, contents.vectors)
        del index  # the bundle has read its own
        return_freed_memory(collect=True)
        progress("graphs", 0, None)
        facts["parity"] |= _write_graphs(folder, bundle, probe, graph_formats)
        (folder / CARD).write_text(model_card(bundle, facts), encoding="utf-8")
        progress("checksums", 0, None)
        write_manifest(folder, facts)
        del bundle
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
    copy_schema(contents.features / "context", folder / CONTEXT, contents.config.context)
    config = {"model": asdict(contents.config), "history_length": contents.history_length}
    if contents.program is not None:
        core_graph.save(contents.program, folder / USER_PROGRAM)
        config["user_input"] = "ids" if contents.reads_ids else "vectors"
    write_document(folder / CONFIG, config)
    write_document(folder / METRICS, contents.metrics)
    if contents.filters is not None:
        contents.filters.write_parquet(folder / FILTERS)


def _write_graphs(
    folder: Path, bundle: Bundle, probe: Probe, formats: Sequence[str]
) -> dict[str, float]:
    """Write the graphs and return how far their answers are from the expected ones."""
    if bundle.program is not None and bundle.program.document["block"] is not None:
        formats = [name for name in formats if name != "pt2"]  # it would be for 8 users alone
    if not formats:
        return {}
    graph = graphs.UserGraph(bundle, bundle.request_features)
    program = graphs.export_graph(graph, bundle.history_length)
    inputs = graph.inputs(probe.history, probe.profiles)
    found = {}
    if "pt2" in formats:
        graphs.write_pt2(folder / graphs.PT2, program)
        with torch.no_grad():
            answers = graphs.answered(program.module()(*inputs))
        found["pt2"] = user_difference("the exported graph's vectors", answers, probe)
    if "onnx" in formats:
        graphs.write_onnx(folder / graphs.ONNX, program, graph.input_names())
        answers = graphs.run_onnx(folder / graphs.ONNX, inputs)
        found["onnx"] = user_difference("the ONNX graph's vectors", answers, probe)
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


def difference(what: str, found: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest number.

    Raises:
        DataError: If it exceeds `TOLERANCE`.
    """
    scale = max(float(expected.abs().max()), 1e-12)
    same_shape = found.shape == expected.shape
    worst = float((found - expected).abs().max()) / scale if same_shape else np.inf
    if not worst <= TOLERANCE:
        raise DataError(
            f"{what} differ from the trained model's by {worst:.2g} of their size, more than "
            f"{TOLERANCE:g}: nothing was exported"
        )
    return worst


def user_difference(what: str, found: Tensor | Queries, probe: Probe) -> float:
    """`difference` of interests `[U, K, d]` from those of the probe, or of queries and weights."""
    expected = probe.interests
    if not isinstance(expected, Queries) or not isinstance(found, Queries):
        return difference(what, weights_of(found)[0], weights_of(expected)[0])
    width = max(found.vectors.shape[1], expected.vectors.shape[1])
    # Absent queries may be any vector, and as many as a history may have items.
    both = []
    for queries in (found, expected):
        weights = queries.log_weights.exp()
        vectors = torch.where(weights.unsqueeze(2) > 0, queries.vectors, 0.0)
        joined = torch.cat([vectors, weights.unsqueeze(2)], dim=2)
        both.append(functional.pad(joined, (0, 0, 0, width - joined.shape[1])))
    return difference(what, *both)


def compare(recommender: Recommender, probe: Probe, vectors: Tensor) -> dict[str, float]:
    """Differences in user vectors, and in scores of the expected item `vectors` `[N + 1, d]`."""
    interests = recommender.interests(probe.history, probe.profiles)
    k = min(LIST, recommender.num_items)
    expected = ExactIndex(vectors).search(probe.interests, k).scores
    found = ExactIndex(recommender.item_vectors).search(interests, k).scores
    return {
        "user vectors": user_difference("the bundle's user vectors", interests, probe),
        "scores": difference("the bundle's scores", found, expected),
    }


def random_histories(recommender: Recommender, items: np.ndarray, *, seed: int = 0) -> Tensor:
    """Histories `[U, L]` drawn from `items` by popularity, where no real users are available."""
    weights = np.asarray(recommender.item_counts)[items] + 1.0
    shape = (PROBE_USERS, recommender.history_length)
    drawn = np.random.default_rng(seed).choice(items, size=shape, p=weights / weights.sum())
    return torch.from_numpy(drawn)


def model_card(bundle: Bundle, facts: dict[str, Any]) -> str:
    """Return the card of a bundle; `facts` becomes its manifest."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError

    items = facts["items"]
    metrics = [bundle.metrics.get(key, {}) for key in ("test", "test_ci", "baselines")]
    test, intervals, popular = metrics[0], metrics[1], metrics[2].get("popularity", {})
    shown = [metric for metric in SHOWN_METRICS if metric in intervals]  # else no user had a target
    environment = Environment(  # noqa: S701 - Markdown, not HTML
        loader=PackageLoader("crossbatch.serving.bundle"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    try:
        return environment.get_template("model_card.md").render(
            bundle=bundle,
            facts=facts,
            index=facts["index"],
            data=facts["origin"].get("dataset"),
            added=items["count"] - items["trained"],
            keys=_example_keys(bundle),
            measured=bool(test),
            quality=[(m, test[m], intervals[m], popular.get("test", {}).get(m)) for m in shown],
            code=_code,
            literal=literal,
            names=_names,
            percent=_percent,
            quote=quote,
        )
    except UndefinedError as error:
        raise LookupError(str(error)) from None


def _example_keys(bundle: Bundle) -> list[str]:
    """The first two items, if their keys are words: others would need quoting, or end the block."""
    keys = bundle.item_keys(range(1, min(3, bundle.num_items + 1)))
    return keys if all(PLAIN_KEY.match(key) for key in keys) else ["ITEM"]


def _names(names: Iterable[str], none: str = "none") -> str:
    return ", ".join(_code(name) for name in names) or none


def _code(text: object) -> str:
    """Text that Markdown shows as it is, in a line or a cell of a table."""
    plain = printable(" ".join(str(text).split())).replace("`", "'").replace("|", "\\|")
    return f"`{plain or ' '}`"


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f}"  # a float: text in its place raises TypeError, it is not repeated
