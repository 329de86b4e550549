"""Memory and network traffic of a catalogue on R machines: the arithmetic of docs/scaling.md.

    python benchmarks/capacity.py

An estimate, not a measurement: bytes and operations are counted (a test checks the bytes of a step)
and divided by the speed of network and core that you choose. Bytes are those that one rank receives
when messages travel in a ring: (R − 1) times its share for a gathered tensor, 2 (R − 1)/R times its
size for one that is added up.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

FLOAT, ID = 4, 8  # bytes
# Items, ranks, batch of all ranks, tables.
EXAMPLES = (
    (1_000_000, 1, 1_024, "adam"),
    (1_000_000, 4, 4_096, "adam"),
    (10_000_000, 1, 4_096, "adagrad"),
    (10_000_000, 8, 8_192, "adam"),
    (100_000_000, 4, 8_192, "sharded"),
    (100_000_000, 16, 16_384, "sharded"),
    (1_000_000_000, 16, 16_384, "sharded"),
    (1_000_000_000, 64, 65_536, "sharded"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that traffic and memory depend on.

    Attributes:
        items: Rows of the id table, N.
        dim: Width of all vectors, d.
        ranks: Processes, R.
        batch: Rows of the batch of all ranks, B.
        history: Items of a history, L.
        bank: Rows of the bank, M.
        averages: Whether the user tower reads the mean of a history (YouTube DNN) or each item.
        rows: Distinct rows that a rank reads one by one, n; 0 for the most there can be.
        dense: Numbers in the layers.
        tensors: Tensors that they are kept in.
    """

    items: int
    dim: int
    ranks: int
    batch: int
    history: int = 20
    bank: int = 2432
    averages: bool = True
    rows: int = 0
    dense: int = 0
    tensors: int = 0

    @property
    def share(self) -> int:
        """Rows of the batch that a rank has, c = ⌈B/R⌉."""
        return -(-self.batch // self.ranks)


def replicated_traffic(s: Shape) -> dict[str, float]:
    """Bytes that a rank receives in a step where every rank has a copy of the id table."""
    others, c = s.ranks - 1, s.share
    bags, bag_ids = (c, c * s.history) if s.averages else (0, 0)
    n = s.rows or min(s.items, c if s.averages else c * (1 + s.history))
    return {
        "item vectors": others * FLOAT * c * s.dim,
        "their gradients": others * FLOAT * c * s.dim,
        "rows read: length": others * ID,
        "rows read: numbers": others * FLOAT * (3 + (n + bags) * (1 + s.dim) + bag_ids),
        "layers, loss, stop": 2 * others / s.ranks * FLOAT * (s.dense + s.tensors + 2),
    }


def sharded_traffic(s: Shape) -> dict[str, float]:
    """At most: bytes that a rank receives in a step where the id table is spread over the ranks.

    Every item of the rank's rows is taken to be another one, and R − 1 of R to be elsewhere.
    """
    others, c = s.ranks - 1, s.share
    rows = c * (1 + s.history) * others / s.ranks
    return {
        "item vectors": others * FLOAT * c * s.dim,
        "their gradients": others * FLOAT * c * s.dim,
        "rows: ids, vectors, gradients": rows * (ID + 2 * FLOAT * s.dim),
        "layers, loss, stop": 2 * others / s.ranks * FLOAT * (s.dense + s.tensors + 2),
    }


def memory(s: Shape, tables: str) -> dict[str, float]:
    """Bytes that a rank holds, by `train.tables`: `"adam"`, `"adagrad"` or `"sharded"`."""
    rows = s.items / s.ranks if tables == "sharded" else s.items
    state = {"adam": 2 * FLOAT * s.dim + FLOAT, "adagrad": FLOAT, "sharded": FLOAT}[tables]
    columns = s.share * (s.batch + s.bank)
    return {
        "rows": FLOAT * rows * s.dim,
        "optimiser": rows * state,
        "bank": 2 * s.bank * (FLOAT * s.dim + 2 * ID + FLOAT),
        "logits": FLOAT * columns,
    }


def multiplications(s: Shape) -> float:
    """Floating-point operations of a rank's softmax in a step: logits and their two gradients.

    Towers come on top; the bank takes part in the logits and the user side alone.
    """
    return 2.0 * s.share * s.dim * (3 * s.batch + 2 * s.bank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--bank", type=int, default=2432)
    parser.add_argument("--gigabits", type=float, default=10, help="network, per machine")
    parser.add_argument("--gigaflops", type=float, default=50, help="matrix products, per machine")
    parser.add_argument("--quick", action="store_true", help="no effect: this is fast")
    options = parser.parse_args()
    print(
        f"d = {options.dim}, M = {options.bank}, L = 20, YouTube DNN; {options.gigabits:g} Gbit/s"
    )
    print(f"and {options.gigaflops:g} GFLOP/s per machine, one rank each\n")
    print("| items | ranks | batch | tables | GB/rank | MB received | network ms | softmax ms |")
    print("|---|---|---|---|---|---|---|---|")
    for items, ranks, batch, tables in EXAMPLES:
        layers = options.dim * options.dim + options.dim
        s = Shape(items, options.dim, ranks, batch, bank=options.bank, dense=layers, tensors=2)
        traffic = sharded_traffic(s) if tables == "sharded" else replicated_traffic(s)
        received, held = sum(traffic.values()), sum(memory(s, tables).values())
        network = received * 8 / (options.gigabits * 1e9) * 1e3
        softmax = multiplications(s) / (options.gigaflops * 1e9) * 1e3
        print(
            f"| {items:,} | {ranks} | {batch:,} | {tables} | {held / 1e9:.2f} | "
            f"{received / 1e6:.2f} | {network:.1f} | {softmax:.1f} |"
        )


if __name__ == "__main__":
    main()
