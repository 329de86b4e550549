"""Everything that makes a step fast, against plain autograd over plain layers.

Compiled kernels, fused layers, the fused softmax and tables read side by side on one side;
`nn.Sequential`, `row_losses` and the gradients of whole tables on the other.
"""

import itertools

import pytest
import torch
from torch import nn

from crossbatch.config import Recipe
from crossbatch.models import MODELS, EmbeddingTable
from crossbatch.models import routing as routing_module
from crossbatch.models.dense import MLP
from crossbatch.negatives import SAMPLERS
from crossbatch.negatives.loss import row_losses
from crossbatch.training import trainer as trainer_module
from crossbatch.training.assemble import build_trainer, resolve

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


def gradients(trainer, batch):
    """The loss of a batch, and the gradient of every parameter by name."""
    torch.manual_seed(11)
    u, positives, _, loss = trainer.forward(batch)
    trainer.backward(u, positives, loss)
    found = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    for name, table in trainer.model.named_modules():
        if isinstance(table, EmbeddingTable):
            whole = table.weight.grad
            total = table.keeper.total() if whole is None else whole.to_dense()
            found[f"{name}.weight"] = total
    return loss.detach(), found


@pytest.mark.parametrize(("model", "sampler"), list(itertools.product(MODELS, SAMPLERS)))
def test_a_fast_step_has_the_loss_and_gradients_of_the_plain_one(
    dataset, recipe, model, sampler, monkeypatch
):
    document = recipe.to_dict()
    document["model"] |= {"name": model, "item": {"hidden": [16]}}
    document["sampler"] = {"name": sampler} | SAMPLER_OPTIONS[sampler]
    document["train"] |= {"adam": "lazy"}
    fast, plain = (
        build_trainer(resolve(Recipe.from_dict(document), dataset), dataset) for _ in range(2)
    )
    batches = dataset.batches(32, seed=0)
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
    batch = next(batches)
    loss, found = gradients(fast, batch)
    monkeypatch.setattr(MLP, "forward", nn.Sequential.forward)
    monkeypatch.setattr(routing_module, "HAS_NUMBA", False)
    monkeypatch.setattr(
        trainer_module,
        "sampled_softmax_loss",
        lambda u, positives, negatives, mask, **_: row_losses(
            u, positives, negatives, mask=mask
        ).mean(),
    )
    expected_loss, expected = gradients(plain, batch)
    torch.testing.assert_close(loss, expected_loss)
    assert set(found) == set(expected)
    for name, truth in expected.items():
        torch.testing.assert_close(found[name], truth, rtol=1e-4, atol=1e-6, msg=name)
