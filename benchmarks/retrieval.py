"""Exact full-corpus top-k: ours against the GEMM floor, matmul + topk and faiss, in one run.

    python benchmarks/retrieval.py                       # 10,000 to 313,966 items, K = 1 and 4
    python benchmarks/retrieval.py --quick               # a smoke run, seconds

The methods take turns on the same users, so that a busy machine disturbs them alike. CPU seconds
are of the whole process (threads add up); the spread is the fastest and the slowest turn.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from crossbatch.retrieval import ExactIndex
from measure.machine import describe, peak_growth_mib
from measure.report import header, table_line

MOST_FLOORS, LEAST_FAISS, AIMED_ITEMS = 2, 5, 313_966  # targets, by number of items and interests

Method = Callable[[Tensor], Tensor | None]


def gemm_floor(vectors: Tensor) -> Method:
    """Only the matrix products, in tiles that stay in cache; results are discarded."""

    def run(interests: Tensor) -> None:
        queries = interests.flatten(0, 1)
        tile = torch.empty(2048, 512)
        for block in queries.split(512):
            for items in vectors.split(2048):
                out = tile.view(-1)[: len(items) * len(block)].view(len(items), len(block))
                torch.mm(items, block.T, out=out)

    return run


def matmul_topk(vectors: Tensor, k: int) -> Method:
    """The plain `matmul` and `topk`, in blocks of users that fit in memory."""

    def run(interests: Tensor) -> Tensor:
        lists = []
        for block in interests.split(64):
            scores = torch.einsum("bkd,nd->bkn", block, vectors).amax(dim=1)
            lists.append(scores.topk(k, dim=1).indices)
        return torch.cat(lists)

    return run


def ours(vectors: Tensor, k: int) -> Method:
    index = ExactIndex(torch.cat([vectors.new_zeros(1, vectors.shape[1]), vectors]))
    return lambda interests: index.search(interests, k).item_ids - 1


def faiss_flat(vectors: Tensor, k: int, threads: int) -> Method:
    """IndexFlatIP; several interests are searched apart and pooled by their best score."""
    import faiss

    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.numpy())

    def run(interests: Tensor) -> Tensor:
        B, K, d = interests.shape
        scores, ids = index.search(interests.reshape(B * K, d).numpy(), k)
        order = torch.from_numpy(scores).view(B, K * k).argsort(dim=1, descending=True)
        pooled = torch.from_numpy(ids).view(B, K * k).gather(1, order)
        if K == 1:
            return pooled
        earlier = (pooled[:, :, None] == pooled[:, None, :]).tril(-1).any(dim=2)  # a repeat
        return pooled.gather(1, earlier.byte().argsort(dim=1, stable=True)[:, :k])

    return run


def measure(methods: dict[str, Method], interests: Tensor, repeats: int) -> dict[str, list[float]]:
    """Return CPU seconds per turn of each method, turns interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            start = time.process_time()
            method(interests)
            seconds[name].append(time.process_time() - start)
    return seconds


def agreement(methods: dict[str, Method], interests: Tensor) -> dict[str, float]:
    """Return the share of users whose *set* of k items is ours; rounding may swap neighbours."""
    reference = methods["crossbatch"](interests)
    shares = {}
    for name, method in methods.items():
        found = method(interests)
        if found is not None and reference is not None:
            same = found.sort(dim=1).values == reference.sort(dim=1).values
            shares[name] = float(same.all(dim=1).double().mean())
    return shares


def compare(items: int, users: int, K: int, args: argparse.Namespace) -> dict[str, Any]:
    """All methods on the same users: turns, shares of equal lists, memory of our search."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(items, args.dim, generator=generator)
    interests = torch.randn(users, K, args.dim, generator=generator)
    methods = {
        "GEMM floor": gemm_floor(vectors),
        "crossbatch": ours(vectors, args.k),
        "matmul + topk": matmul_topk(vectors, args.k),
    }
    try:
        methods["faiss IndexFlatIP"] = faiss_flat(vectors, args.k, args.threads)
    except ImportError:
        print("faiss is not installed: left out (pip install faiss-cpu)")
    peak = peak_growth_mib(lambda: methods["crossbatch"](interests))
    same = agreement(methods, interests[: min(users, 64)])
    return {
        "items": items,
        "users": users,
        "interests": K,
        "peak_mib": peak,
        "same": same,
        "seconds": measure(methods, interests, args.repeats),
    }


def markdown(result: dict[str, Any]) -> str:
    """One line a method; the aims beside what was reached."""
    seconds = {name: median(turns) for name, turns in result["seconds"].items()}
    least, own = seconds["GEMM floor"], seconds["crossbatch"]
    aims = {"crossbatch": (f"≤ {MOST_FLOORS} floors", own <= MOST_FLOORS * least)}
    if (faiss := seconds.get("faiss IndexFlatIP")) is not None:
        aims["faiss IndexFlatIP"] = (f"≥ {LEAST_FAISS} times ours", faiss >= LEAST_FAISS * own)
    title = "{items:,} items, {users:,} users, K = {interests}".format(**result)
    lines = header(title, "CPU s", "spread", "÷ floor", "÷ ours", "same lists", "aim")
    for name, turns in result["seconds"].items():
        share = f"{result['same'][name]:.3f}" if name in result["same"] else ""
        cells = [f"{seconds[name]:.3f}", f"{min(turns):.3f}-{max(turns):.3f}"]
        cells += [f"{seconds[name] / least:.2f}", f"{seconds[name] / own:.2f}", share]
        verdict = ""
        if name in aims and result["items"] >= AIMED_ITEMS:
            aim, met = aims[name]
            verdict = f"{aim}: {'ok' if met else 'missed'}"
        lines.append(table_line(name, *cells, verdict))
    return "\n".join([*lines, f"\nour search raised memory by {result['peak_mib']:.0f} MiB"])


def summary(document: dict[str, Any]) -> str:
    """All comparisons of a run, one table each."""
    return "\n\n".join(markdown(result) for result in document["results"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--items", type=int, nargs="+", default=[313_966, 40_000, 10_000])
    parser.add_argument("--users", type=int, default=1024)
    parser.add_argument("--interests", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("-k", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, one turn: a smoke run")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    args = parser.parse_args()
    if args.quick:
        args.items, args.users, args.repeats = [5_000], 64, 1
    torch.set_num_threads(args.threads)
    document = {"machine": describe(), "quick": args.quick, "k": args.k, "d": args.dim}
    print(document)
    results = []
    for items, K in product(args.items, args.interests):
        results.append(compare(items, max(1, args.users // K), K, args))
        print(markdown(results[-1]) + "\n", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document | {"results": results}, indent=1)
    (args.out / "retrieval.json").write_text(text)


if __name__ == "__main__":
    main()
