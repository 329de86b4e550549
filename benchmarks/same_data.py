"""TensorFlow Recommenders with the data use of our defaults, against runs of our defaults.

    python benchmarks/same_data.py --data book-1m --runs runs/s0 runs/s1 runs/s2 \
        --work same-data --out results/peers/book-1m.json

TFRS trains on the batches of the first run, in their order: every interaction with one before it is
a sample, batches of 256, vectors of 256 dimensions, as many batches as the run had. It reads ids
alone, a history of at most 20 items as their mean (Keras layers, `peers/tfrs_retrieval.py`). Its
optimiser and learning rate are chosen by validation recall@50 after a quarter of the batches, then
the checkpoint of the full training; metrics leave out items that a user has had. Processor time is
that of one thread, steps alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.evaluation import Popularity, evaluate_recommender
from crossbatch.files import read_document, write_document
from crossbatch.training.build import draw_batches
from measure.workers import ROOT, peer_python
from opponents import METRICS, ours, paired_gaps
from quality import vector_recommender

if TYPE_CHECKING:
    from crossbatch.data import Dataset
    from crossbatch.evaluation import Evaluation

HERE = Path(__file__).parent
HISTORY_LENGTH = 20
CHECKPOINTS, SEARCH_SHARE = 4, 4
TRIED = ("adagrad:0.1", "adagrad:0.3", "adam:0.002")
DECIDES = "recall@50"


class Peer:
    """TFRS on the samples of a run."""

    def __init__(self, dataset: Dataset, run: Path, work: Path, venvs: Path) -> None:
        config = read_document(run / "config.json", "train the run")
        self.recipe = Recipe.from_dict({name: config[name] for name in ("model", "train")})
        self.steps = int(read_document(run / "result.json", "train the run")["steps"])
        self.dataset, self.work, self.venvs = dataset, work, venvs
        self.popularity = Popularity.from_counts(np.array(dataset.item_counts))

    def export(self) -> None:
        """Write the batches, the histories to evaluate and the sampling distribution."""
        folder, train = self.work / "exchange", self.recipe.train
        if (folder / "item_counts.npy").exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        longer = self.recipe.changed([f"train.history_length={HISTORY_LENGTH}"]).train
        taken = list(islice(draw_batches(longer, self.dataset), self.steps))
        law = self.dataset.sampling_law(train.min_history, train.sample_by, train.newest_days)
        arrays = {
            "train_history": torch.cat([batch.history.int() for batch in taken]).numpy(),
            "train_items": torch.cat([batch.item_ids.int() for batch in taken]).numpy(),
            "sampler_law": np.array(law),
        }
        for split in ("valid", "test"):
            users = self.dataset.eval_batches(split, history_length=HISTORY_LENGTH)
            arrays[f"{split}_history"] = torch.cat([batch.history.int() for batch in users]).numpy()
        arrays["item_counts"] = np.array(self.dataset.item_counts)  # last: the others are complete
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)

    def train(self, model: str, optimizer: str, rate: float, steps: int) -> dict[str, Any]:
        """Train unless it was done; the record with the best checkpoint and its metrics."""
        out = self.work / f"{model}-{optimizer}-{rate:g}-{steps}"
        if not (out / "done.json").exists():
            self.export()
            arguments = {
                "data": (self.work / "exchange").resolve(),
                "out": out.resolve(),
                "model": model,
                "lr": rate,
                "steps": steps,
                "checkpoints": CHECKPOINTS,
                "seed": self.recipe.train.seed,
                "batch-size": self.recipe.train.batch_size,
                "dim": self.recipe.model.dim,
                "optimizer": optimizer,
            }
            words = [str(word) for key, value in arguments.items() for word in (f"--{key}", value)]
            python = peer_python("tfrs", self.venvs)
            command = [str(python), "-m", "peers.tfrs_retrieval", *words]
            subprocess.run(command, check=True, cwd=HERE)
        valid = {path: self.measure(path, "valid") for path in out.glob("step-*.npz")}
        best = max(valid, key=lambda path: valid[path].means()[DECIDES])
        print(out.name, best.stem, f"{100 * valid[best].means()[DECIDES]:.2f}", flush=True)
        record = {"model": model, "optimizer": optimizer, "lr": rate, "steps": steps}
        record |= {"best": best, "valid": valid[best].means()[DECIDES]}
        return record | json.loads((out / "done.json").read_text())

    def measure(self, path: Path, split: str) -> Evaluation:
        """Metrics of exported vectors, without seen items."""
        with np.load(path) as vectors:
            recommend = vector_recommender(vectors["items"], vectors[split], self.dataset, split)
        batches = self.dataset.eval_batches(split, history_length=HISTORY_LENGTH)
        return evaluate_recommender(
            recommend, batches, popularity=self.popularity, exclude_history=True
        )

    def record(self, model: str, tried: list[str], runs: list[Path]) -> dict[str, Any]:
        """Choose the optimiser, train for all batches, and compare with the runs."""
        pairs = [each.split(":") for each in tried]
        few = self.steps // SEARCH_SHARE
        tries = [self.train(model, optimizer, float(rate), few) for optimizer, rate in pairs]
        chosen = max(tries, key=lambda each: float(each["valid"]))
        found = self.train(model, chosen["optimizer"], chosen["lr"], self.steps)
        test = self.measure(found.pop("best"), "test")
        means = test.means()
        found["tried"] = [
            {name: each[name] for name in ("optimizer", "lr", "valid")} for each in tries
        ]
        found["test"] = {name: means[name] for name in (*METRICS, "tail_recall@50")}
        return found | {"difference": paired_gaps(runs, test.per_user)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of arrays and vectors")
    parser.add_argument("--venvs", type=Path, default=ROOT, help="folder of the environment")
    parser.add_argument("--models", nargs="+", default=["youtube_dnn"])
    parser.add_argument("--tried", nargs="+", default=TRIED, help="optimisers and their rates")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    peer = Peer(
        open_dataset(arguments.data), arguments.runs[0], arguments.work, arguments.venvs.resolve()
    )
    peers = [peer.record(model, arguments.tried, arguments.runs) for model in arguments.models]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"data": arguments.data.name, "ours": ours(arguments.runs), "tfrs": peers}
    write_document(arguments.out, record)
    for each in peers:
        print(each["model"], each["test"], each["difference"])


if __name__ == "__main__":
    main()
