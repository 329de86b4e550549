"""A training step against plain autograd: torch's own layers, whole tables, the loss's definition.

The fast step reads tables by rows and uses the operations of `kernels`; the plain one has neither.
"""

import copy
import itertools

import pytest
import torch
from torch import nn

from crossbatch.config import Recipe
from crossbatch.kernels import switched_off
from crossbatch.kernels.row_gradients import gradient_of_each_id
from crossbatch.models import MODELS, EmbeddingTable, ItemTower, TwoTower
from crossbatch.models.history import History
from crossbatch.negatives import SAMPLERS, Corpus, InBatchSampler
from crossbatch.negatives.loss import NonFiniteLossError, row_losses
from crossbatch.queries import Queries
from crossbatch.training import step as step_module
from crossbatch.training.build import build_trainer, resolve
from crossbatch.training.optimizers import Adam
from crossbatch.training.step import Trainer

SAMPLER_OPTIONS = {
    "uniform": {"num_negatives": 50},
    "in_batch": {},
    "mixed": {"num_uniform": 40},
    "cross_batch": {"capacity": 96, "warmup_steps": 2, "item_gradient": "balanced"},
}


def tables_of(model):
    return {n: part for n, part in model.named_modules() if isinstance(part, EmbeddingTable)}


def summed(table, reads):
    """The gradient of the whole table that reads amount to."""
    found = torch.zeros_like(table.weight)
    for read in reads:
        if read.gradient is not None:
            found.index_add_(0, read.ids, gradient_of_each_id(read))
    if table.padding_row is not None:
        found[table.padding_row] = 0
    return found


def gradients(trainer, batches):
    """The loss of the last batch, and the gradient of every parameter by name, over all."""
    torch.manual_seed(11)
    for batch in batches:
        u, positives, _, loss = trainer.forward(batch)
        trainer.backward(u, positives, loss)
    found = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    for name, table in tables_of(trainer.model).items():
        if table.row_optimizer is not None:
            found[f"{name}.weight"] = summed(table, table.row_optimizer.reads)
        elif table.weight.grad is not None:
            found[f"{name}.weight"] = table.weight.grad.to_dense()
    return loss.detach(), found


def divided(u, temperature):
    """User vectors over the temperature; queries are divided by their tower."""
    return u if isinstance(u, Queries) else u / temperature


def assert_same_gradients(document, dataset, monkeypatch):
    """Of a step of the recipe `document`, fast and plain."""
    resolved = resolve(Recipe.from_dict(document), dataset)
    fast, plain = (build_trainer(resolved, dataset) for _ in range(2))
    batches = dataset.batches(32, seed=0, later=True)
    for batch in itertools.islice(batches, 4):  # weights off their start, rows in the bank
        torch.manual_seed(3)
        fast.train_step(batch)
    plain.model.load_state_dict(fast.model.state_dict())
    plain.sampler.load_state_dict(fast.sampler.state_dict())
    for table in tables_of(plain.model).values():
        table.row_optimizer = None
    some = list(itertools.islice(batches, fast.accumulate))
    loss, found = gradients(fast, some)
    monkeypatch.setattr(
        step_module,
        "sampled_softmax_loss",
        lambda u, positives, negatives, temperature, mask, exclude, **_: row_losses(
            divided(u, temperature), positives, negatives, mask=mask, exclude=exclude
        ).mean(),
    )
    with switched_off():
        expected_loss, expected = gradients(plain, some)
    torch.testing.assert_close(loss, expected_loss)
    for name, truth in expected.items():
        torch.testing.assert_close(found[name], truth, rtol=1e-4, atol=1e-6, msg=name)
    assert all(not found[name].any() for name in set(found) - set(expected))


@pytest.mark.parametrize("normalize", [False, True], ids=["dot", "cosine"])
@pytest.mark.parametrize(("model", "sampler"), list(itertools.product(MODELS, SAMPLERS)))
def test_every_model_with_every_sampler(dataset, recipe, model, sampler, normalize, monkeypatch):
    document = recipe.to_dict()
    document["model"] |= {"name": model, "item": {"hidden": [16]}, "normalize": normalize}
    document["model"] |= {"history_dropout": 0.3, "user_features": []}
    if model == "sasrec":  # its dropout draws other noise for other shapes
        document["model"] |= {"tower": {"dropout": 0.0}}
    document["loss"] |= {"temperature": 0.2 if normalize else 1.0}
    document["sampler"] = {"name": sampler} | SAMPLER_OPTIONS[sampler]
    document["train"] |= {"adam": "lazy"}
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


@pytest.mark.parametrize(
    ("model", "tower"),
    [(model, tower) for model, towers in TOWERS.items() for tower in towers],
    ids=str,
)
def test_other_towers_over_two_batches(dataset, recipe, model, tower, monkeypatch):
    document = recipe.to_dict()
    document["model"] |= {"name": model, "tower": tower, "normalize": True}
    document["model"] |= {"history_dropout": 0.3, "user_features": []}
    document["sampler"] = {"name": "in_batch"}
    document["train"] |= {"adam": "lazy", "accumulate": 2}
    assert_same_gradients(document, dataset, monkeypatch)


@pytest.mark.parametrize("user_features", [[], ["*"]], ids=["history", "profile"])
@pytest.mark.parametrize("history", ["id", "content", "item_tower"])
@pytest.mark.parametrize("model", ["youtube_dnn", "gru4rec", "mind"])
def test_histories_with_content_and_users_with_profiles(
    dataset, recipe, model, history, user_features, monkeypatch
):
    document = recipe.to_dict()
    document["model"] |= {"name": model, "history": history}
    document["model"] |= {"item": {"hidden": [16], "id_dim": 16 if history == "id" else 6}}
    document["model"] |= {"history_dropout": 0.3, "user_features": user_features}
    document["sampler"] = {"name": "mixed"} | SAMPLER_OPTIONS["mixed"]
    document["train"] |= {"adam": "lazy"}
    assert_same_gradients(document, dataset, monkeypatch)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    "masks", [{"mask_later": True}, {"mask_later": True, "mask_history": True}]
)
def test_what_else_users_liked_is_masked(dataset, recipe, sampler, masks, monkeypatch):
    document = recipe.to_dict()
    document["loss"] |= masks
    document["sampler"] = {"name": sampler} | SAMPLER_OPTIONS[sampler]
    document["train"] |= {"adam": "lazy"}
    assert_same_gradients(document, dataset, monkeypatch)


@pytest.mark.parametrize("item_features", [[], ["category"], ["*"]], ids=["id", "category", "all"])
def test_steps_in_a_row_are_those_of_torch_alone(dataset, recipe, item_features):
    """Weights, moments, banks: dense Adam, batches that add up, a tower without layers."""
    document = recipe.to_dict()
    document["model"] |= {"item_features": item_features, "normalize": True}
    document["loss"] |= {"temperature": 0.1}
    document["sampler"] = {"name": "cross_batch"} | SAMPLER_OPTIONS["cross_batch"]
    document["train"] |= {"adam": "dense", "accumulate": 2}
    resolved = resolve(Recipe.from_dict(document), dataset)

    def losses():
        trainer = build_trainer(resolved, dataset)
        batches = itertools.islice(dataset.batches(32, seed=0), 12)
        return [float(trainer.train_step(batch).loss) for batch in batches]

    fast = losses()
    with switched_off():
        assert fast == pytest.approx(losses(), rel=1e-4)


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
def test_further_options_take_the_same_step(dataset, recipe, changed):
    document = recipe.to_dict()
    for section, options in changed.items():
        document[section] |= options
    trainer = build_trainer(resolve(Recipe.from_dict(document), dataset), dataset)
    assert type(trainer) is Trainer
    assert float(trainer.train_step(next(dataset.batches(32, seed=0))).loss) > 0


def test_a_loss_that_is_not_finite_names_its_tensor(dataset, recipe):
    trainer = build_trainer(resolve(recipe, dataset), dataset)
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


class LastTwo(nn.Module):
    """A custom user tower: the last two items, weighted."""

    def __init__(self, dim):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([0.5, 0.3]))
        self.layer = nn.Linear(dim, dim)

    def forward(self, history):
        vectors, mask = history.padded()
        last = mask.sum(dim=1) - 1
        rows = torch.arange(len(last))
        total = self.weights[0] * vectors[rows, last.clamp(min=0)]
        second = self.weights[1] * vectors[rows, (last - 1).clamp(min=0)]
        return self.layer(total + second * (last > 0).unsqueeze(1))


class OwnItems(nn.Module):
    """An item tower of a user's own: nothing but an `nn.Embedding`."""

    def __init__(self, num_items, dim):
        super().__init__()
        self.rows = nn.Embedding(num_items + 1, dim, padding_idx=0)

    def forward(self, item_ids):
        return self.rows(item_ids)


@pytest.mark.parametrize("items", ["ours", "own"])
def test_a_brand_new_tower_is_trained_as_torch_would_train_it(dataset, items):
    """Ten steps against a loop of plain torch, written out: autograd, cross-entropy, Adam."""
    dim, num_items = 8, dataset.num_items
    torch.manual_seed(0)
    tower = ItemTower(num_items, dim) if items == "ours" else OwnItems(num_items, dim)
    model = TwoTower(tower, LastTwo(dim), history="item_tower")
    twin = copy.deepcopy(model)
    counts = torch.as_tensor(dataset.item_counts).clone()
    sampler = InBatchSampler(Corpus(counts, dim))
    trainer = Trainer(model, sampler, Adam(model, lr=0.01, semantics="dense"))
    for part in tables_of(twin).values():
        part.sparse = False
    optimizer = torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.0)
    log_q = (counts.double() / counts[1:].sum()).log().float()
    for batch in itertools.islice(dataset.batches(16, seed=5), 10):
        loss = trainer.train_step(batch).loss
        v = twin.item_tower(batch.item_ids)
        lengths = (batch.history != 0).sum(dim=1)
        vectors = twin.item_tower(batch.history[batch.history != 0])
        u = twin.user_tower(History(lambda rows=vectors: rows, lengths.cumsum(dim=0)))
        logits = u @ v.T - log_q[batch.item_ids]
        same = batch.item_ids[:, None] == batch.item_ids
        logits = logits.masked_fill(same & ~torch.eye(16, dtype=torch.bool), -torch.inf)
        expected = nn.functional.cross_entropy(logits, torch.arange(16))
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
    trainer.optimizer.flush()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5, msg=name)


def test_a_subclass_and_a_hook_take_effect(dataset, recipe):
    """What a caller changes about a tower after it was built takes effect in the next step."""
    document = recipe.to_dict()
    document["model"] |= {"normalize": False, "user_features": []}
    trainer = build_trainer(resolve(Recipe.from_dict(document), dataset), dataset)
    tower = trainer.model.user_tower
    batch = next(dataset.batches(32, seed=0))

    class Doubled(type(tower)):
        def forward(self, history):
            return 2 * super().forward(history)

    torch.manual_seed(0)
    once = trainer.forward(batch)[0]
    tower.__class__ = Doubled
    torch.manual_seed(0)
    torch.testing.assert_close(trainer.forward(batch)[0], 2 * once)
    tower.register_forward_hook(lambda module, inputs, output: output + 1)
    torch.manual_seed(0)
    torch.testing.assert_close(trainer.forward(batch)[0], 2 * once + 1)
