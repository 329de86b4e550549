"""Exact and approximate search: time and recall as the catalogue grows.

    python benchmarks/ann.py                                # generated: 38 k, 368 k and 1 M items
    python benchmarks/ann.py --bundle books.bundle          # your bundle; histories by popularity
    python benchmarks/ann.py --quick                        # a smoke run, seconds

Recall is the mean share of the exact list of k that is found. CPU milliseconds: of one user alone
(the least of 20) and of a user in a batch of 256. `hnsw` is faiss's HNSW32 with
default settings, for comparison; up to 400 k items, because beyond it takes minutes to build.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossbatch.retrieval import ExactIndex, Index, IVFIndex, TopK
from crossbatch.retrieval.choice import tune
from crossbatch.retrieval.ivf import load_faiss
from crossbatch.serving import Bundle, open_bundle
from crossbatch.serving.bundle.writing import random_histories
from synthetic_bundle import cluster_history, synthetic_bundle

if TYPE_CHECKING:
    from collections.abc import Callable

USERS, TARGETS, EFFORTS = 256, (0.9, 0.95, 0.99), (64, 256, 1024)
HNSW_ITEMS = 400_000


class HNSW:
    """faiss's graph index with default settings."""

    exact = False

    def __init__(self, vectors: Tensor) -> None:
        faiss = load_faiss()
        self.num_items, self.effort = len(vectors) - 1, 64
        self._graph = faiss.index_factory(vectors.shape[1], "HNSW32", faiss.METRIC_INNER_PRODUCT)
        self._graph.add(vectors[1:].contiguous().numpy())

    def search(self, interests: Tensor, k: int, *, exclude: Tensor | None = None) -> TopK:
        """Top-k lists for users with one vector each."""
        options = load_faiss().SearchParametersHNSW(efSearch=self.effort)
        found = self._graph.search(interests[:, 0].contiguous().numpy(), k, params=options)
        scores, rows = map(torch.from_numpy, found)
        return TopK(scores, rows + 1)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def measured(name: str, index: Index, users: Tensor, truth: Tensor, build: float) -> dict[str, Any]:
    k = truth.shape[1]
    alone = min(timed(partial(index.search, user, k))[1] for user in users[:20].split(1))
    found, batch = timed(lambda: index.search(users, k).item_ids)
    hits = (truth[:, :, None] == found[:, None]).any(dim=2).double().mean()
    row = {
        "method": name,
        "build": build,
        "alone": 1000 * alone,
        "batch": 1000 * batch / len(users),
        "recall": float(hits),
    }
    print(
        f"{name:<22}{build:>9.1f}{row['alone']:>11.2f}{row['batch']:>11.3f}{row['recall']:>9.4f}",
        flush=True,
    )
    return row


def compare(name: str, vectors: Tensor, users: Tensor, k: int) -> dict[str, Any]:
    print(f"\n{name}: {len(vectors) - 1:,} items, d = {vectors.shape[1]}, k = {k}")
    print(f"{'':<22}{'build s':>9}{'ms alone':>11}{'ms batch':>11}{'recall':>9}")
    exact = ExactIndex(vectors)
    truth = exact.search(users, k).item_ids
    rows = [measured("exact", exact, users, truth, 0.0)]
    ivf, build = timed(lambda: IVFIndex.build(vectors))
    for target in TARGETS:
        tune(ivf, users, k, target)
        label = f"ivf {ivf.probes} of {ivf.num_cells}"
        if label not in {row["method"] for row in rows}:
            rows.append(measured(label, ivf, users, truth, build))
    if users.shape[1] == 1 and len(vectors) <= HNSW_ITEMS:
        graph, build = timed(lambda: HNSW(vectors))
        for graph.effort in EFFORTS:
            rows.append(measured(f"hnsw {graph.effort}", graph, users, truth, build))
    return {"name": name, "items": len(vectors) - 1, "rows": rows}


def generated(items: int, k: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        bundle = synthetic_bundle(Path(folder) / "bundle", items, index="exact")
        for verify in (False, True):
            _, seconds = timed(partial(open_bundle, bundle.path, verify=verify))
            print(
                f"a bundle of {items:,} items opens in {seconds:.2f} CPU s, {verify=}", flush=True
            )
        history = torch.tensor([cluster_history(items, 1000 + user) for user in range(USERS)])
        return compare("generated", bundle.item_vectors, bundle.users(history), k)


def of_bundle(bundle: Bundle, k: int) -> dict[str, Any]:
    readable = torch.arange(1, len(bundle.history_vectors)).numpy()
    users = bundle.users(random_histories(bundle, readable, seed=1))
    return compare(bundle.name, bundle.item_vectors, users, k)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--items", type=int, nargs="*", default=[38_519, 367_982, 1_000_000])
    parser.add_argument("--bundle", type=Path, nargs="*", default=[], help="real catalogues")
    parser.add_argument("-k", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a small catalogue: a smoke run")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    load_faiss().omp_set_num_threads(args.threads)
    sizes = [5_000] if args.quick else [] if args.bundle else args.items
    results = [generated(items, args.k) for items in sizes]
    results += [of_bundle(open_bundle(path), args.k) for path in args.bundle]
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
