"""Our in-batch models next to other libraries: same split, samples, budget and metric code.

    python benchmarks/quality.py --data DATASET --out DIR              # all trainings, hours
    python benchmarks/quality.py --data DATASET --out DIR --quick      # a smoke run, minutes
    python benchmarks/quality.py --out DIR --table                     # Markdown from the records

Each other library (a *peer*) runs in its own environment (`peers/requirements-*.txt`) on exported
arrays: the same batches as our training, in the same order. It returns the vectors of its two
towers at evenly spaced checkpoints. For every library and variant, recall@50 on the validation
users selects the learning rate after a quarter of the budget, and then the checkpoint of the full
training that is tested. Every training writes a record to `DIR/records`; finished ones are not
repeated.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossbatch.bootstrap import mean_interval
from crossbatch.config import PAPER, Recipe
from crossbatch.data import Dataset, open_dataset
from crossbatch.evaluation import Evaluation, Popularity, evaluate_recommender
from crossbatch.evaluation.baselines import evaluate_baselines
from crossbatch.evaluation.recommenders import Recommender
from crossbatch.retrieval import ExactIndex
from crossbatch.training import fit
from measure.workers import ROOT, peer_python
from peers.summary import BASELINE, METRICS, as_list, markdown, summarise

HERE = Path(__file__).parent
BATCH_SIZE, HISTORY_LENGTH, MIN_HISTORY, DIM = 128, 20, 4, 64
SEARCH_SHARE = 4  # learning rates are compared after 1/4 of the budget
DECIDES = "recall@50"

# What a recipe says besides model, budget and learning rate.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "cosine, T = 0.1": {
        "model": {"normalize": True, "history_dropout": 0.3},
        "loss": {"temperature": 0.1},
    },
    "cosine, no dropout": {"model": {"normalize": True}, "loss": {"temperature": 0.1}},
    "dot product": {},
    # Only with --variants: the differences between our GRU and Adam and TensorFlow's.
    "no dropout, dense Adam": {
        "model": {"normalize": True},
        "loss": {"temperature": 0.1},
        "train": {"adam": "dense"},
    },
    "no dropout, reset after": {
        "model": {"normalize": True, "tower": {"reset_before": False}},
        "loss": {"temperature": 0.1},
    },
}
# library → module and environment; (library, model) → what is special about it
LIBRARIES = {
    "RecBole": ("peers.recbole_gru4rec", "recbole"),
    "torch-rechub": ("peers.rechub_youtube_dnn", "torch"),
    "TFRS": ("peers.tfrs_retrieval", "tfrs"),
}
PEER_MODELS = {
    ("RecBole", "gru4rec"): "softmax over all items",
    ("torch-rechub", "youtube_dnn"): "127 sampled negatives",
    ("TFRS", "youtube_dnn"): "in-batch, cosine, T = 0.1",
    ("TFRS", "gru4rec"): "in-batch, cosine, T = 0.1",
}


@dataclass(frozen=True)
class Training:
    """One training; its name is the name of its record."""

    library: str
    model: str
    variant: str
    lr: float = 0.0
    steps: int = 0

    @property
    def name(self) -> str:
        """Letters, digits, points and dashes."""
        words = f"{self.library} {self.model} {self.variant} lr {self.lr:g}".lower()
        words = f"{words} steps {self.steps}"
        return "-".join("".join(c if c.isalnum() or c == "." else " " for c in words).split())


class Study:
    """One dataset and one folder of records."""

    def __init__(self, dataset: Dataset, args: argparse.Namespace) -> None:
        self.dataset = dataset
        self.out: Path = args.out
        self.venvs: Path = args.venvs
        self.steps, self.checkpoints, self.rates = args.steps, args.checkpoints, args.lr
        self.seed = args.seed
        self.popularity = Popularity.from_counts(np.array(dataset.item_counts))
        for folder in ("records", "per_user", "exchange"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)

    def run(self, kind: Training) -> None:
        """Choose the learning rate after a quarter of the budget, then train for all of it."""
        tries = [replace(kind, lr=lr, steps=self.steps // SEARCH_SHARE) for lr in self.rates]
        scores = {t.lr: self.train(t)["valid"] for t in tries} if len(tries) > 1 else {}
        best = max(scores, key=lambda lr: scores[lr]) if scores else self.rates[0]
        self.train(replace(kind, lr=best, steps=self.steps), searched=scores)

    def train(self, training: Training, **notes: Any) -> dict[str, Any]:
        """Train, test and record, unless there is a record."""
        path = self.out / "records" / f"{training.name}.json"
        if not path.exists():
            print(training.name, flush=True)
            run = self._run_ours if training.library == "crossbatch" else self._run_peer
            details, per_user = run(training)
            fixed = {"batch_size": BATCH_SIZE, "seed": self.seed}
            self._record(training.name, asdict(training) | fixed | notes | details, per_user)
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    def run_baselines(self) -> None:
        """Test and record popularity and item-kNN."""
        if self._recorded("popularity") and self._recorded("item_knn"):
            return
        found = evaluate_baselines(self.dataset, "test", history_length=HISTORY_LENGTH)
        for name, evaluation in found.items():
            label = {"library": "crossbatch", "model": name, "variant": BASELINE}
            self._record(name, label, evaluation.per_user)

    def _run_ours(self, training: Training) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        folder = self.out / "runs" / training.name
        recipe = self._recipe(training)
        result = fit(self.dataset, recipe, folder, resume=(folder / "config.json").exists())
        per_user = {name: np.load(folder / "per_user" / f"test_{name}.npy") for name in METRICS}
        config = json.loads((folder / "config.json").read_text())
        return {
            "valid": result["valid"][DECIDES],
            "best_step": result["best_step"],
            "seconds": result["seconds_per_1000_steps"] * training.steps / 1000,
            "versions": {"crossbatch": config["version"], "torch": torch.__version__},
            "options": recipe.to_dict(),
        }, per_user

    def _recipe(self, training: Training) -> Recipe:
        document: dict[str, dict[str, Any]] = {
            "model": PAPER["model"] | {"name": training.model, "dim": DIM},
            "sampler": {"name": "in_batch"},
            "loss": dict(PAPER["loss"]),
            "train": {
                "batch_size": BATCH_SIZE,
                "history_length": HISTORY_LENGTH,
                "min_history": MIN_HISTORY,
                "sample_by": "user",
                "lr": training.lr,
                "schedule": "constant",
                "exclude_seen": "no",
                "adam": "lazy",
                "max_steps": training.steps,
                "eval_every": training.steps // self.checkpoints,
                "patience": self.checkpoints,
                "seed": self.seed,
                "threads": 1,
            },
        }
        for section, options in VARIANTS[training.variant].items():
            document[section] |= options
        return Recipe.from_dict(document)

    def _run_peer(self, training: Training) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        module, environment = LIBRARIES[training.library]
        folder = self.out / "vectors" / training.name
        if not (folder / "done.json").exists():
            self.export()
            python = peer_python(environment, self.venvs)
            arguments = {
                "data": (self.out / "exchange").resolve(),
                "out": folder.resolve(),
                "model": training.model,
                "lr": training.lr,
                "steps": training.steps,
                "checkpoints": self.checkpoints,
                "seed": self.seed,
            }
            words = [str(word) for key, value in arguments.items() for word in (f"--{key}", value)]
            subprocess.run([str(python), "-m", module, *words], check=True, cwd=HERE)
        scores = {}
        for path in folder.glob("step-*.npz"):
            valid = self._measure(path, "valid").means()[DECIDES]
            scores[int(path.stem.removeprefix("step-"))] = valid
        best = max(scores, key=lambda step: scores[step])
        details = json.loads((folder / "done.json").read_text())
        details |= {"valid": scores[best], "best_step": best}
        return details, self._measure(folder / f"step-{best}.npz", "test").per_user

    def export(self) -> None:
        """Write the input of the peers: batches in our order, histories to evaluate, item q."""
        folder = self.out / "exchange"
        if (folder / "item_counts.npy").exists():
            return
        batches = self.dataset.batches(
            BATCH_SIZE, seed=self.seed, history_length=HISTORY_LENGTH, min_history=MIN_HISTORY
        )
        taken = list(islice(batches, self.steps))
        arrays = {
            "train_history": torch.cat([b.history.int() for b in taken]).numpy(),
            "train_items": torch.cat([b.item_ids.int() for b in taken]).numpy(),
            "sampler_law": np.array(self.dataset.sampling_law(MIN_HISTORY)),
            "item_counts": np.array(self.dataset.item_counts),
        }
        for split in ("valid", "test"):
            users = self.dataset.eval_batches(split, history_length=HISTORY_LENGTH)
            arrays[f"{split}_history"] = torch.cat([b.history.int() for b in users]).numpy()
        for name, array in sorted(arrays.items(), key=lambda entry: entry[0] == "item_counts"):
            np.save(folder / f"{name}.npy", array)  # item_counts last: it marks completeness

    def _measure(self, path: Path, split: str) -> Evaluation:
        with np.load(path) as vectors:
            recommend = vector_recommender(vectors["items"], vectors[split], self.dataset, split)
        batches = self.dataset.eval_batches(split, history_length=HISTORY_LENGTH)
        return evaluate_recommender(recommend, batches, popularity=self.popularity)

    def _recorded(self, name: str) -> bool:
        return (self.out / "records" / f"{name}.json").exists()

    def _record(self, name: str, details: dict[str, Any], per_user: dict[str, np.ndarray]) -> None:
        kept = {metric: np.asarray(per_user[metric], dtype=np.float32) for metric in METRICS}
        np.savez(self.out / "per_user" / f"{name}.npz", **kept)  # type: ignore[arg-type]
        details["test"] = {metric: as_list(mean_interval(kept[metric])) for metric in METRICS}
        path = self.out / "records" / f"{name}.json"
        path.with_suffix(".part").write_text(json.dumps(details, indent=1))
        path.with_suffix(".part").rename(path)


def vector_recommender(
    items: np.ndarray, users: np.ndarray, dataset: Dataset, split: str
) -> Recommender:
    """Rank by inner product of stored vectors, those of a split's users in their order."""
    index = ExactIndex(torch.from_numpy(items.astype(np.float32)))
    vectors = torch.from_numpy(users.astype(np.float32))
    batches = dataset.eval_batches(split, history_length=1)
    user_ids, order = torch.cat([batch.user_ids for batch in batches]).sort()

    def recommend(batch: Any, k: int, exclude: torch.Tensor | None) -> torch.Tensor:
        rows = order[torch.searchsorted(user_ids, batch.user_ids)]
        return index.search(vectors[rows, None], k, exclude=exclude).item_ids

    return recommend


def kinds(models: list[str], libraries: list[str], variants: list[str]) -> list[Training]:
    """Ours in each variant and the peers' of the same models; our other models in one variant."""
    compared = {model for _, model in PEER_MODELS}
    chosen = [
        Training("crossbatch", model, variant)
        for model, variant in product(models, variants)
        if model in compared or variant == variants[0]
    ]
    chosen += [
        Training(*peer, variant) for peer, variant in PEER_MODELS.items() if peer[1] in models
    ]
    return [kind for kind in chosen if kind.library in libraries]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, help="prepared dataset")
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and records")
    parser.add_argument("--venvs", type=Path, default=ROOT, help="folder of the environments")
    parser.add_argument("--models", nargs="+", default=["youtube_dnn", "gru4rec", "mind"])
    parser.add_argument("--libraries", nargs="+", default=["crossbatch", *LIBRARIES])
    parser.add_argument("--steps", type=int, default=6000, help="batches of 128 samples")
    parser.add_argument("--checkpoints", type=int, default=6)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.001, 0.003])
    parser.add_argument("--seed", type=int, default=0, help="of samples and initialisation")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS)[:3], help="of ours")
    parser.add_argument("--quick", action="store_true", help="200 batches, one learning rate")
    parser.add_argument("--table", action="store_true", help="only print the records")
    args = parser.parse_args()
    if args.quick:
        args.steps, args.checkpoints, args.lr = 200, 2, [0.003]
    if not args.table:
        if args.data is None:
            sys.exit("--data DATASET is needed, unless --table only prints records")
        torch.set_num_threads(1)
        study = Study(open_dataset(args.data), args)
        study.run_baselines()
        for kind in kinds(args.models, args.libraries, args.variants):
            study.run(kind)
    print(markdown(summarise(args.out)))


if __name__ == "__main__":
    main()
