"""Time and memory of the cross-batch loss, compared with a minimal loss.

    python benchmarks/loss.py            # about a minute on one core
    python benchmarks/loss.py --quick    # a few seconds

One interleaved run, so that a busy machine slows all variants alike. The baseline is a bare
`logsumexp(u @ C.T).mean()`, forward and backward, over the same columns as constants: no positive,
no correction, no mask, no gradient for the batch's items. The target is 1.3 times that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from crossbatch.negatives import Candidates, CrossBatchSoftmax, MemoryBank, sampled_softmax_loss
from crossbatch.negatives.loss import row_losses
from measure.machine import describe, peak_growth_mib

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

B, M, D, NUM_ITEMS = 128, 2432, 64, 367_982
YARDSTICK = "bare logsumexp, constant columns"
TARGET = 1.3


def popular_ids(count: int) -> Tensor:
    """Ids with p ∝ 1 / (rank + 150): head and tail as frequent as those of Amazon-Books."""
    growth = (NUM_ITEMS + 150.0) / 151.0
    return (151.0 * growth ** torch.rand(count, dtype=torch.float64)).long() - 150


def contenders() -> dict[str, Callable[[], Tensor]]:
    """Name → a function that returns a fresh scalar loss on the next batch."""
    u, v = (torch.randn(B, D, requires_grad=True) for _ in range(2))
    columns = torch.randn(B + M, D)
    live_columns = columns.clone().requires_grad_()
    counts = torch.bincount(popular_ids(10_000_000), minlength=NUM_ITEMS + 2) + 1
    drop_in = CrossBatchSoftmax(D, M, warmup_steps=0, item_counts=counts)
    assert drop_in.frequency is not None  # counts were given
    frequency = drop_in.frequency
    batches = cycle([popular_ids(B) for _ in range(200)])
    bank = MemoryBank(M, D)
    for _ in range(M // B):
        ids = next(batches)
        bank.enqueue(Candidates(torch.randn(B, D), ids, frequency(ids)))
        drop_in(u, torch.randn(B, D), next(batches))

    def cross_batch(reduce: Callable[..., Tensor]) -> Tensor:
        ids = next(batches)
        positives = Candidates(v, ids, frequency.log_q[ids])
        return reduce(u, positives, positives + bank.read())

    return {
        YARDSTICK: lambda: torch.logsumexp(u @ columns.T, dim=1).mean(),
        "bare logsumexp, columns with gradient": lambda: torch.logsumexp(
            u @ live_columns.T, dim=1
        ).mean(),
        "sampled_softmax_loss": lambda: cross_batch(sampled_softmax_loss),
        "the same in plain autograd": lambda: cross_batch(lambda *a: row_losses(*a).mean()),
        "CrossBatchSoftmax, whole call": lambda: drop_in(u, v, next(batches)),
    }


def interleaved(losses: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of forward and backward; each round runs every contender, in turning order.

    CPU time, because on a busy machine the wall clock measures the neighbours; the work is done
    by one thread, so on a quiet machine the two agree.
    """
    names = list(losses)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    warmup = max(5, rounds // 10)
    for number in range(warmup + rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.process_time()
            losses[name]().backward()
            elapsed = time.process_time() - start
            if number >= warmup:
                seconds[name].append(elapsed)
    return seconds


def summary(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median time, and median and quartiles of the per-round ratio to the yardstick."""
    table = {}
    for name, times in seconds.items():
        ratios = [t / bare for t, bare in zip(times, seconds[YARDSTICK], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        table[name] = {
            "milliseconds": 1e3 * statistics.median(times),
            "ratio": middle,
            "ratio_low": low,
            "ratio_high": high,
        }
    return table


def peak_memory(rows: int, batch: int, chunk_size: int | None) -> dict[str, float]:
    """Growth of the peak resident memory over one forward and backward, in a process of its own."""
    command = [sys.executable, __file__, "--child", str(rows), str(batch), str(chunk_size or 0)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(run.stdout)
    return {"rows": rows, "batch": batch, "chunk_size": chunk_size or 0} | measured


def child(rows: int, batch: int, chunk_size: int) -> None:
    torch.set_num_threads(1)
    u, v = (torch.randn(batch, D, requires_grad=True) for _ in range(2))
    positives = Candidates(v, popular_ids(batch), torch.zeros(batch))
    bank = MemoryBank(rows, D)
    bank.enqueue(Candidates(torch.randn(rows, D), popular_ids(rows), torch.zeros(rows)))
    start = time.perf_counter()
    peak = peak_growth_mib(
        lambda: sampled_softmax_loss(
            u, positives, positives + bank.read(), chunk_size=chunk_size or None
        ).backward()
    )
    print(json.dumps({"peak_mib": peak, "seconds": time.perf_counter() - start}))


def report(result: dict[str, object], table: dict[str, dict[str, float]]) -> None:
    for key, value in describe().items():
        print(f"{key:>8}: {value}")
    print(f"\nforward + backward, B={B}, M={M}, d={D}, {result['rounds']} interleaved rounds\n")
    print(f"{'':40}{'median':>10}{'ratio':>8}{'quartiles':>16}")
    for name, row in table.items():
        spread = f"{row['ratio_low']:.2f} - {row['ratio_high']:.2f}"
        print(f"{name:40}{row['milliseconds']:>7.2f} ms{row['ratio']:>8.2f}{spread:>16}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller memory runs")
    parser.add_argument("--rounds", type=int, help="interleaved rounds; default 1000, or 100 quick")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "loss.json")
    parser.add_argument("--child", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds = options.rounds or (20 if options.quick else 1000)
    table = summary(interleaved(contenders(), rounds))
    result: dict[str, object] = {
        "machine": describe(),
        "sizes": {"B": B, "M": M, "d": D},
        "rounds": rounds,
        "target_ratio": TARGET,
        "losses": table,
    }
    report(result, table)
    batch, largest = (512, 20_000) if options.quick else (4096, 100_000)
    print(f"\npeak memory of one loss, forward + backward, B={batch}\n")
    memory = [
        peak_memory(largest // 10, batch, 2048),
        peak_memory(largest, batch, 2048),
        peak_memory(largest, batch, None),
    ]
    for row in memory:
        chunks = f"chunk_size={row['chunk_size']}" if row["chunk_size"] else "all at once"
        print(
            f"  M={row['rows']:>7}, {chunks:16}{row['peak_mib']:>8.0f} MiB{row['seconds']:>8.1f} s"
        )
    result["memory"] = memory
    options.out.parent.mkdir(parents=True, exist_ok=True)
    partial = options.out.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=2) + "\n")
    partial.replace(options.out)
    print(f"\nwrote {options.out}")


if __name__ == "__main__":
    main()
