"""Checkpoints that someone forged, checksums recomputed: refused in one sentence, or harmless.

`CROSSBATCH_FAULTS=300` makes 10,500 mutations.
"""

import copy
import os
import random

import pytest
import torch

from crossbatch.errors import DataError
from crossbatch.negatives import NonFiniteLossError
from crossbatch.training import checkpoint
from crossbatch.training.build import build_trainer, draw_batches, resolve
from crossbatch.training.journal import Monitor
from crossbatch.training.loop import EarlyStopping
from crossbatch.training.run_folder import RunFolder

MUTATIONS = max(40, 7 * int(os.environ.get("CROSSBATCH_FAULTS", "0")))  # of each variant
STEP = 12
VARIANTS = {
    "a bank and dense Adam": {"sampler.capacity": 70},
    "GRU and lazy Adam": {"model.name": "gru4rec", "train.adam": "lazy"},
    "capsules, mixed, Adagrad": {
        "model.name": "mind",
        "sampler": {"name": "mixed"},
        "train.tables": "adagrad",
    },
    "features, learned temperature": {
        "model.item_features": ["*"],
        "model.user_features": ["*"],
        "loss.learn_temperature": True,
    },
    "queries": {"model.name": "recent_items", "sampler": {"name": "in_batch"}},
}
DOCUMENT = {
    "step": STEP,
    "stopping": {"best": 0.1, "best_step": 8, "misses": 0},
    "threads": 1,
    "eval_threads": 1,
    "journal": 10,
    "losses": [1.0, 2.0],
    "warned": ["masked_share"],
    "seconds": 1.0,
    "columns": 3,
    "share_before_bank": 0.2,
}
VALUES = [None, -1, 10**5, 2**63, 1.5, float("nan"), "x", [], {}, ["x"], [[]], {"a": 1}, True]


@pytest.fixture(params=VARIANTS.values(), ids=list(VARIANTS))
def saved(request, recipe, dataset):
    """A recipe, and the tensors of a trainer after a few steps."""
    settings = recipe.to_dict()
    settings["sampler"] |= {"warmup_steps": 4}
    for path, value in request.param.items():
        section, _, key = path.partition(".")
        settings[section] = settings[section] | {key: value} if key else value
    chosen = resolve(type(recipe).from_dict(settings), dataset)
    trainer = build_trainer(chosen, dataset)
    steps(trainer, chosen, dataset, STEP)
    return chosen, {k: v.clone() for k, v in checkpoint.trainer_state(trainer).items()}


def steps(trainer, recipe, dataset, count):
    """Train; a monitor watches, as in a run."""
    monitor = Monitor(trainer, 4, lambda *_, **__: None)
    monitor.load_state(DOCUMENT)
    batches = draw_batches(recipe.train, dataset, start=trainer.step, later=trainer.mask_later)
    for _ in range(count):
        monitor(trainer.train_step(next(batches)))
    trainer.optimizer.flush()


def spiked(x, rng):
    """The tensor with one number changed."""
    y = x.clone().flatten()
    place = rng.randrange(len(y))
    if y.dtype == torch.bool:
        y[place] = ~y[place]
    elif y.is_floating_point():
        y[place] = rng.choice([float("nan"), float("inf"), 1e38, -1.0])
    else:
        least, most = torch.iinfo(y.dtype).min, torch.iinfo(y.dtype).max
        y[place] = rng.choice([least, most, rng.randint(max(least, -5), min(most, 2000))])
    return y.reshape(x.shape)


def mutated(x, rng):
    kinds = [torch.float64, torch.int32, torch.int64, torch.bool, torch.uint8]
    changes = [
        lambda: spiked(x, rng),
        lambda: torch.full_like(x.double(), rng.choice([-1e8, -3000, 9, 1024, 2**31, 2**62])),
        lambda: x.to(rng.choice(kinds)),
        lambda: x.flatten()[: x.numel() // 2].clone(),
        lambda: torch.cat([x.flatten(), x.flatten()]),
        lambda: x.unsqueeze(0),
        lambda: x.new_empty(0),
        lambda: torch.full_like(x.float(), rng.choice([float("nan"), float("inf"), 1e38])),
        lambda: torch.randint(0, 255, x.shape, dtype=torch.uint8),
    ]
    return rng.choice(changes)()


def forged(tensors, rng):
    """Tensors and document with something changed."""
    tensors, document = dict(tensors), copy.deepcopy(DOCUMENT)
    if rng.random() < 0.15:
        where = document["stopping"] if rng.random() < 0.3 else document
        where[rng.choice(sorted(where))] = rng.choice(VALUES)
        return tensors, document
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice(sorted(tensors))
        tensors[name] = mutated(tensors[name], rng)
    if rng.random() < 0.05:
        del tensors[rng.choice(sorted(tensors))]
    return tensors, document


def test_forged_checkpoints_are_refused_or_harmless(saved, dataset, tmp_path, monkeypatch):
    recipe, whole = saved
    rng, refused = random.Random(20211), 0
    for _ in range(MUTATIONS):
        found = forged(whole, rng)
        monkeypatch.setattr(checkpoint, "load_newest", lambda *_, found=found, **__: found)
        trainer = build_trainer(recipe, dataset)
        folder = RunFolder(tmp_path / "run", resume=True, writes=False)
        try:
            document = folder.load_checkpoint(trainer, EarlyStopping(3), print)
        except DataError:
            refused += 1
            continue
        Monitor(trainer, 4, print).load_state(document)
        try:
            steps(trainer, recipe, dataset, 2)
        except NonFiniteLossError:  # of weights too large: one sentence
            continue
    assert MUTATIONS / 3 < refused < MUTATIONS


def test_a_whole_checkpoint_is_taken(saved, dataset, tmp_path, monkeypatch):
    recipe, whole = saved
    monkeypatch.setattr(checkpoint, "load_newest", lambda *_, **__: (whole, dict(DOCUMENT)))
    trainer = build_trainer(recipe, dataset)
    folder = RunFolder(tmp_path / "run", resume=True, writes=False)
    folder.load_checkpoint(trainer, EarlyStopping(3), print)
    for name, value in checkpoint.trainer_state(trainer).items():
        assert torch.equal(value, whole[name]), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss.log_temperature", 1e38),
        ("loss.log_temperature", float("nan")),
        ("optimizer.table.item_tower.table.steps", float("inf")),
        ("optimizer.table.item_tower.table.touched", float("inf")),
        ("optimizer.dense.0.steps.0", -1.0),
        ("model.item_tower.table.weight", float("inf")),
        ("sampler.bank.step", 2**63 - 1),
        ("threads", 10**6),
        ("warned", [[]]),
        ("share_before_bank", "x"),
    ],
)
@pytest.mark.parametrize("saved", [{}], indirect=True)
def test_bug_tracebacks(saved, dataset, tmp_path, monkeypatch, name, value):
    """Each of these was taken, and ended in a traceback."""
    recipe, whole = saved
    tensors, document = dict(whole), copy.deepcopy(DOCUMENT)
    if name in whole:
        tensors[name] = torch.full(whole[name].shape, value)
    else:
        document[name] = value
    monkeypatch.setattr(checkpoint, "load_newest", lambda *_, **__: (tensors, document))
    folder = RunFolder(tmp_path / "run", resume=True, writes=False)
    with pytest.raises(DataError, match="does not fit the recipe"):
        folder.load_checkpoint(build_trainer(recipe, dataset), EarlyStopping(3), print)
