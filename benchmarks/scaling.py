"""How fast a training step is on one thread, on several, and on several ranks of this machine.

    python benchmarks/scaling.py --tower gru4rec --dim 128 --length 50 --batch 1024 2048 4096
    python benchmarks/scaling.py --quick       # a smoke run: few steps, numbers mean nothing
    python benchmarks/scaling.py --ranking     # ranking half of the items, half of the users

All take the same steps, in turns, so that whatever else the machine does disturbs all of them
alike; each row is of the turn with the least wall time. Ranks have one thread each, and send their
messages by gloo over the loopback interface.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Way:
    """To train: how many processes, with how many threads each."""

    ranks: int
    threads: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tower", default="gru4rec")
    parser.add_argument("--item-tower", default="", choices=("", "text_transformer"))
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--length", type=int, default=50, help="items of a history")
    parser.add_argument("--bank", type=int, default=2432, help="rows of the bank")
    parser.add_argument("--batch", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of one process")
    parser.add_argument("--steps", type=int, default=4, help="of a turn")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranking", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    if options.ranking:
        print_ranking(options.quick)
        return
    if options.quick:
        options.dim, options.batch, options.steps, options.turns = 16, [64], 1, 1
    ways = [Way(1, threads) for threads in options.threads]
    ways += [Way(ranks, 1) for ranks in options.ranks]
    print(f"{os.cpu_count()} cores; load average {os.getloadavg()[0]:.1f}\n")
    print("| batch | processes | threads of each | wall ms | speed | CPU ms of one | messages ms |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        make_dataset(data, options)
        for batch in options.batch:
            found = measure(data, batch, ways, options)
            for way in ways:
                wall, cpu, waited = found[way]
                speed = found[ways[0]][0] / wall
                print(
                    f"| {batch:,} | {way.ranks} | {way.threads} | {wall:.1f} | {speed:.2f} | "
                    f"{cpu:.1f} | {waited:.1f} |",
                    flush=True,
                )


def measure(
    data: Path, batch: int, ways: list[Way], options: argparse.Namespace
) -> dict[Way, list[float]]:
    """Milliseconds of wall, of CPU, and of wall spent in messages, per step of rank 0."""
    groups = {way: start(data, batch, way, options) for way in ways}
    turns: dict[Way, list[list[float]]] = {way: [] for way in ways}
    for _ in range(options.turns + 1):  # the first warms up
        for way, group in groups.items():
            for process in group:
                process.stdin.write("go\n")
                process.stdin.flush()
            lines = [process.stdout.readline() for process in group]
            turns[way].append([float(number) for number in lines[0].split()])
    for group in groups.values():
        for process in group:
            process.stdin.close()
            process.wait()
    return {way: min(taken[1:]) for way, taken in turns.items()}


def start(data: Path, batch: int, way: Way, options: argparse.Namespace) -> list[Any]:
    """The processes of a way, each of which takes a turn when it reads a line."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    task = vars(options) | {"data": str(data), "batch": batch, "threads": way.threads}
    group = []
    for rank in range(way.ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": way.ranks, "MASTER_PORT": port}
        env = os.environ | {key: str(value) for key, value in place.items()}
        env |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": str(way.threads)}
        command = [sys.executable, __file__, "--worker", json.dumps(task)]
        pipe = subprocess.PIPE
        group.append(subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True))
    return group


def work(task: dict[str, Any]) -> None:
    import torch

    from crossbatch.config import PAPER, Recipe
    from crossbatch.data import open_dataset
    from crossbatch.training.build import build_trainer, draw_batches, resolve
    from crossbatch.training.distributed import ranks
    from crossbatch.training.distributed.start import joined

    torch.set_num_threads(task["threads"])
    dataset = open_dataset(Path(task["data"]))
    model = PAPER["model"] | {"name": task["tower"], "dim": task["dim"]}
    if task["item_tower"]:
        model |= {"item_tower": task["item_tower"], "history": "item_tower", "normalize": True}
    document = {
        "model": model,
        "sampler": {"name": "cross_batch", "capacity": task["bank"], "warmup_steps": 0},
        "loss": PAPER["loss"],
        "train": PAPER["train"]
        | {"batch_size": task["batch"], "history_length": task["length"], "adam": "lazy"},
    }
    waited = [0.0]
    contact = ranks.contact

    class Timed:
        def __init__(self) -> None:
            self.inner = contact()

        def __enter__(self) -> None:
            self.began = time.perf_counter()
            self.inner.__enter__()

        def __exit__(self, *error: object) -> None:
            self.inner.__exit__(*error)
            waited[0] += time.perf_counter() - self.began

    ranks.contact = Timed
    with joined() as group:
        recipe = resolve(Recipe.from_dict(document), dataset)
        trainer = build_trainer(recipe, dataset, ranks=group)
        batches = draw_batches(recipe.train, dataset)
        for _ in sys.stdin:
            waited[0], wall, cpu = 0.0, time.perf_counter(), time.process_time()
            for _ in range(task["steps"]):
                trainer.train_step(next(batches))
            turn = (time.perf_counter() - wall, time.process_time() - cpu, waited[0])
            print(*(1e3 * seconds / task["steps"] for seconds in turn), flush=True)


def print_ranking(quick: bool) -> None:
    """CPU time of ranking a catalogue: whole, half of the items, half of the users."""
    import torch

    from crossbatch.retrieval import ExactIndex

    torch.set_num_threads(1)
    items, users = (2_000, 64) if quick else (100_000, 1_024)
    vectors, interests = torch.randn(items + 1, 64), torch.randn(users, 1, 64)
    parts = {
        "whole": (vectors, interests),
        "half of the items": (vectors[: items // 2 + 1], interests),
        "half of the users": (vectors, interests[: users // 2]),
    }
    taken = dict.fromkeys(parts, float("inf"))
    for _ in range(3):
        for name, (held, asking) in parts.items():
            began = time.process_time()
            ExactIndex(held).search(asking, 50)
            taken[name] = min(taken[name], time.process_time() - began)
    print(f"\nRanking {items:,} items for {users:,} users, CPU seconds of one thread:")
    for name, seconds in taken.items():
        print(f"- {name}: {seconds:.3f} ({seconds / taken['whole']:.2f} of the whole)")


def make_dataset(path: Path, options: argparse.Namespace) -> None:
    """20,000 items, and histories of which most are longer than `length`."""
    from crossbatch.data import PrepareOptions, prepare
    from crossbatch.data.synthetic import SynthOptions, synthetic_source

    users, items = (200, 500) if options.quick else (4_000, 20_000)
    interactions = 3 * options.length * users
    size = SynthOptions(users=users, items=items, interactions=interactions, seed=1)
    prepare(synthetic_source(size), path, PrepareOptions())


if __name__ == "__main__":
    main()
