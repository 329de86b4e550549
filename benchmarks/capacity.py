"""Memory and network traffic of a catalogue on R machines, by `traffic.py`.

    python benchmarks/capacity.py

An estimate, not a measurement: bytes and operations are counted (a test checks the bytes of a step)
and divided by the speed of network and core that you choose.
"""

from __future__ import annotations

import argparse

from traffic import (
    Shape,
    memory,
    multiplications,
    replicated_traffic,
    sharded_traffic,
)

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
