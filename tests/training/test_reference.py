"""Everything that makes a step fast, against plain autograd over plain layers.

The way back written out, compiled kernels, fused layers and the fused softmax on one side;
`nn.Sequential`, `row_losses` and the gradients of whole tables on the other.
"""

import itertools
from dataclasses import fields

import pytest
import torch
from torch import nn

from crossbatch import kernels
from crossbatch.config import Recipe
from crossbatch.models import MODELS, EmbeddingTable
from crossbatch.models.dense import MLP
from crossbatch.models.passes import GraphPass
from crossbatch.negatives import SAMPLERS
from crossbatch.negatives.loss import NonFiniteLossError, row_losses
from crossbatch.training import step as trainer_module
from crossbatch.training.build import build_trainer, resolve
from crossbatch.training.direct import DirectTrainer
from crossbatch.training.step import Trainer

SAMPLER_OPTIONS = {
    "uniform": {"num_negatives": 50},
    "in_batch": {},
    "mixed": {"num_uniform": 40},
    "cross_batch": {"capacity": 96, "warmup_steps": 2, "item_gradient": "balanced"},
}


class Reads:
    """A keeper that adds up the gradients of what was read."""

    def __init__(self, table: EmbeddingTable) -> None:
        self.table, self.reads = table, []
        table.keeper = self

    def before_read(self, ids):
        pass

    def after_read(self, read):
        self.reads.append(read)

    def total(self):
        found = torch.zeros_like(self.table.weight)
        for read in self.reads:
            numbers = torch.arange(len(read.ids))
            bags = numbers // read.bags if isinstance(read.bags, int) else read.bags
            found.index_add_(0, read.ids, read.gradient[bags])
        if self.table.padding_row is not None:
            found[self.table.padding_row] = 0
        return found


def gradients(trainer, batches):
    """The loss of the last batch, and the gradient of every parameter by name, over all."""
    torch.manual_seed(11)
    for batch in batches:
        u, positives, _, loss = trainer.forward(batch)
        trainer.backward(u, positives, loss)
    found = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    for name, table in trainer.model.named_modules():
        if isinstance(table, EmbeddingTable):
            whole = table.weight.grad
            total = table.keeper.total() if whole is None else whole.to_dense()
            found[f"{name}.weight"] = total
    return loss.detach(), found


def reference(trainer):
    """The same trainer with autograd's way back."""
    return Trainer(**{field.name: getattr(trainer, field.name) for field in fields(Trainer)})


def assert_same_gradients(document, dataset, monkeypatch):
    """Of a step of the recipe `document`, fast and plain."""
    resolved = resolve(Recipe.from_dict(document), dataset)
    fast = build_trainer(resolved, dataset)
    assert isinstance(fast, DirectTrainer)
    plain = reference(build_trainer(resolved, dataset))
    batches = dataset.batches(32, seed=0, later=True)
    for batch in itertools.islice(batches, 4):  # weights off their start, rows in the bank
        torch.manual_seed(3)
        fast.train_step(batch)
    plain.model.load_state_dict(fast.model.state_dict())
    plain.sampler.load_state_dict(fast.sampler.state_dict())
    for table in fast.model.modules():
        if isinstance(table, EmbeddingTable):
            Reads(table)
    for table in plain.model.modules():
        if isinstance(table, EmbeddingTable):
            table.keeper = None
    some = list(itertools.islice(batches, fast.accumulate))
    loss, found = gradients(fast, some)
    monkeypatch.setattr(MLP, "forward", nn.Sequential.forward)
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(
        trainer_module,
        "sampled_softmax_loss",
        lambda u, positives, negatives, temperature, mask, exclude, **_: row_losses(
            u / temperature, positives, negatives, mask=mask, exclude=exclude
        ).mean(),
    )
    expected_loss, expected = gradients(plain, some)
    torch.testing.assert_close(loss, expected_loss)
    assert set(found) == set(expected)
    for name, truth in expected.items():
        torch.testing.assert_close(found[name], truth, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("normalize", [False, True], ids=["dot", "cosine"])
@pytest.mark.parametrize(("model", "sampler"), list(itertools.product(MODELS, SAMPLERS)))
def test_a_fast_step_has_the_loss_and_gradients_of_the_plain_one(
    dataset, recipe, model, sampler, normalize, monkeypatch
):
    document = recipe.to_dict()
    document["model"] |= {"name": model, "item": {"hidden": [16]}, "normalize": normalize}
    document["model"] |= {"history_dropout": 0.3, "user_features": []}
    document["loss"] |= {"temperature": 0.2 if normalize else 1.0}
    document["sampler"] = {"name": sampler} | SAMPLER_OPTIONS[sampler]
    document["train"] |= {"adam": "lazy"}
    assert_same_gradients(document, dataset, monkeypatch)


@pytest.mark.parametrize("normalize", [False, True], ids=["dot", "cosine"])
@pytest.mark.parametrize("model", MODELS)
def test_so_has_one_of_users_with_a_profile(dataset, recipe, model, normalize, monkeypatch):
    document = recipe.to_dict()
    document["model"] |= {"name": model, "normalize": normalize, "user_features": ["*"]}
    document["sampler"] = {"name": "in_batch"}
    document["train"] |= {"adam": "lazy", "accumulate": 2}
    assert_same_gradients(document, dataset, monkeypatch)


TOWERS = {
    "mind": [
        {"readout": "soft", "relu": False, "bias_start": "zeros"},
        {"readout": "soft", "power": 2.5, "interests": 5},
        {"bias": False, "interests": 1},
        {"adaptive": True},
    ],
    "gru4rec": [{"hidden_size": 8}, {"reset_before": False}],
}


@pytest.mark.parametrize("normalize", [False, True], ids=["dot", "cosine"])
@pytest.mark.parametrize(
    ("model", "tower"),
    [(model, tower) for model, towers in TOWERS.items() for tower in towers],
    ids=str,
)
def test_so_has_one_of_other_towers_over_two_batches(
    dataset, recipe, model, tower, normalize, monkeypatch
):
    document = recipe.to_dict()
    document["model"] |= {"name": model, "tower": tower, "normalize": normalize}
    document["model"] |= {"history_dropout": 0.3, "user_features": []}
    document["sampler"] = {"name": "in_batch"}
    document["train"] |= {"adam": "lazy", "accumulate": 2}
    assert_same_gradients(document, dataset, monkeypatch)


@pytest.mark.parametrize("user_features", [[], ["*"]], ids=["history", "profile"])
@pytest.mark.parametrize("history", ["content", "item_tower"])
@pytest.mark.parametrize("model", MODELS)
def test_so_has_one_whose_histories_are_read_with_their_content(
    dataset, recipe, model, history, user_features, monkeypatch
):
    """Tables of the item tower, or its layers too, then learn from both sides."""
    document = recipe.to_dict()
    document["model"] |= {"name": model, "history": history}
    document["model"] |= {"item": {"hidden": [16], "id_dim": 6}}
    document["model"] |= {"history_dropout": 0.3, "user_features": user_features}
    document["sampler"] = {"name": "mixed"} | SAMPLER_OPTIONS["mixed"]
    document["train"] |= {"adam": "lazy"}
    assert_same_gradients(document, dataset, monkeypatch)


@pytest.mark.parametrize(
    ("model", "user_features"),
    [
        ("youtube_dnn", []),
        ("youtube_dnn", ["*"]),
        ("gru4rec", []),
        ("gru4rec", ["*"]),
        ("mind", []),
    ],
)
@pytest.mark.parametrize("history", ["id", "content", "item_tower"])
def test_the_papers_towers_need_no_graph(dataset, recipe, model, user_features, history):
    document = recipe.to_dict()
    document["model"] |= {"name": model, "history": history, "user_features": user_features}
    trainer = build_trainer(resolve(Recipe.from_dict(document), dataset), dataset)
    assert not isinstance(trainer._items, GraphPass)
    assert not isinstance(trainer._users, GraphPass)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    "masks", [{"mask_later": True}, {"mask_later": True, "mask_history": True}]
)
def test_so_has_one_that_spares_what_else_users_liked(dataset, recipe, sampler, masks, monkeypatch):
    document = recipe.to_dict()
    document["loss"] |= masks
    document["sampler"] = {"name": sampler} | SAMPLER_OPTIONS[sampler]
    document["train"] |= {"adam": "lazy"}
    assert_same_gradients(document, dataset, monkeypatch)


@pytest.mark.parametrize("item_features", [[], ["category"], ["*"]], ids=["id", "category", "all"])
def test_steps_in_a_row_are_those_of_the_plain_trainer(dataset, recipe, item_features):
    """Weights, moments, banks: dense Adam, batches that add up, a tower without layers."""
    document = recipe.to_dict()
    document["model"] |= {"item_features": item_features, "normalize": True}
    document["loss"] |= {"temperature": 0.1}
    document["sampler"] = {"name": "cross_batch"} | SAMPLER_OPTIONS["cross_batch"]
    document["train"] |= {"adam": "dense", "accumulate": 2}
    resolved = resolve(Recipe.from_dict(document), dataset)
    losses = []
    for trainer in (build_trainer(resolved, dataset), reference(build_trainer(resolved, dataset))):
        batches = itertools.islice(dataset.batches(32, seed=0), 12)
        losses.append([float(trainer.train_step(batch).loss) for batch in batches])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    "changed",
    [
        {"loss": {"l2": 0.1}},
        {"loss": {"learn_temperature": True}},
        {"loss": {"chunk_size": 16}},
        {"train": {"precision": "bfloat16"}},
    ],
    ids=str,
)
def test_what_the_direct_step_does_not_know_is_left_to_autograd(dataset, recipe, changed):
    document = recipe.to_dict()
    for section, options in changed.items():
        document[section] |= options
    trainer = build_trainer(resolve(Recipe.from_dict(document), dataset), dataset)
    assert type(trainer) is Trainer
    assert float(trainer.train_step(next(dataset.batches(32, seed=0))).loss) > 0


def test_a_step_that_is_not_finite_is_blamed_on_its_tensor(dataset, recipe):
    trainer = build_trainer(resolve(recipe, dataset), dataset)
    assert isinstance(trainer, DirectTrainer)
    with torch.no_grad():
        trainer.model.user_tower.layers[0].weight.fill_(float("inf"))
    with pytest.raises(NonFiniteLossError, match="users hold"):
        trainer.train_step(next(dataset.batches(32, seed=0)))


def test_weights_that_were_given_other_memory_are_found_there(dataset, recipe):
    trainer, other = (build_trainer(resolve(recipe, dataset), dataset) for _ in range(2))
    batches = dataset.batches(32, seed=0)
    batch = next(batches)
    trainer.train_step(batch)
    other.train_step(batch)
    for parameter in trainer.model.parameters():
        parameter.data = parameter.data.clone()
    batch = next(batches)
    assert float(trainer.train_step(batch).loss) == float(other.train_step(batch).loss)
    assert all(map(torch.equal, trainer.model.parameters(), other.model.parameters()))
