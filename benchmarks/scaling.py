"""Strong and weak scaling of a training step over ranks on this machine.

    python benchmarks/scaling.py               # minutes
    python benchmarks/scaling.py --quick       # a smoke run: few steps, numbers mean nothing

Strong: the batch of all ranks stays the same. Weak: the rows of a rank do. Every rank has one
thread; more ranks than cores only show what they cost. Wall time and the CPU time of one rank, per
step, the best of a few turns. gloo over the loopback interface.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, QUICK = 60, 5
TURNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        make_dataset(data)
        print(
            f"{os.cpu_count()} cores, one thread per rank; load average {os.getloadavg()[0]:.1f}\n"
        )
        print(
            "| scaling | ranks | batch | wall ms/step | CPU ms/step of a rank | of it, messages |"
        )
        print("|---|---|---|---|---|---|")
        for name in ("strong", "weak"):
            for ranks in options.ranks:
                batch = options.batch if name == "strong" else options.batch // 2 * ranks
                wall, cpu, waiting = measure(data, ranks, batch, QUICK if options.quick else STEPS)
                print(
                    f"| {name} | {ranks} | {batch} | {wall:.1f} | {cpu:.1f} | {waiting:.1f} |",
                    flush=True,
                )
    print_ranking(options.quick)


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
    for _ in range(TURNS):
        for name, (held, asking) in parts.items():
            began = time.process_time()
            ExactIndex(held).search(asking, 50)
            taken[name] = min(taken[name], time.process_time() - began)
    print(f"\nRanking {items:,} items for {users:,} users, CPU seconds of one thread:")
    for name, seconds in taken.items():
        print(f"- {name}: {seconds:.3f} ({seconds / taken['whole']:.2f} of the whole)")


def measure(data: Path, ranks: int, batch: int, steps: int) -> list[float]:
    """Milliseconds of wall, of CPU, and of wall spent in messages, per step of rank 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = []
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        env = os.environ | {key: str(value) for key, value in place.items()}
        env |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--worker", str(data), str(batch), str(steps)]
        group.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in group]
    return [float(number) for number in outputs[0].split()]


def work(data: Path, batch: int, steps: int) -> None:
    import torch

    from crossbatch.config import PAPER, Recipe
    from crossbatch.data import open_dataset
    from crossbatch.training.build import build_trainer, draw_batches, resolve
    from crossbatch.training.distributed import ranks as messages
    from crossbatch.training.distributed.start import joined

    torch.set_num_threads(1)
    dataset = open_dataset(data)
    document = {
        "model": PAPER["model"],
        "sampler": {"name": "cross_batch", "capacity": 2432, "warmup_steps": 0},
        "loss": PAPER["loss"],
        "train": PAPER["train"] | {"batch_size": batch, "adam": "lazy"},
    }
    waited = [0.0]
    contact = messages._contact

    class Timed:
        def __init__(self) -> None:
            self.inner = contact()

        def __enter__(self) -> None:
            self.began = time.perf_counter()
            self.inner.__enter__()

        def __exit__(self, *error: object) -> None:
            self.inner.__exit__(*error)
            waited[0] += time.perf_counter() - self.began

    messages._contact = Timed
    with joined() as group:
        recipe = resolve(Recipe.from_dict(document), dataset)
        trainer = build_trainer(recipe, dataset, ranks=group)
        batches = draw_batches(recipe.train, dataset)
        best = (float("inf"), 0.0, 0.0)
        for _ in range(TURNS + 1):  # the first warms up
            waited[0], wall, cpu = 0.0, time.perf_counter(), time.process_time()
            for _ in range(steps):
                trainer.train_step(next(batches))
            turn = (time.perf_counter() - wall, time.process_time() - cpu, waited[0])
            best = min(best, turn)
    if group is None or group.first:
        print(*(1e3 * seconds / steps for seconds in best))


def make_dataset(path: Path) -> None:
    from crossbatch.data import PrepareOptions, prepare
    from crossbatch.data.synthetic import SynthOptions, synthetic_source

    options = SynthOptions(users=4000, items=20_000, interactions=120_000, seed=1)
    prepare(synthetic_source(options), path, PrepareOptions())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
