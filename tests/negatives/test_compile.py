"""The loss and the drop-in under torch.compile."""

import copy

import pytest
import torch

from crossbatch.negatives import Candidates, CrossBatchSoftmax, sampled_softmax_loss

# Where a graph is split, dynamo itself looks at the .grad of an intermediate tensor.
split_graph = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


def towers(B=4, d=3, num_items=9, dtype=torch.float32):
    u, v = (torch.randn(B, d, dtype=dtype, requires_grad=True) for _ in range(2))
    return u, v, torch.randint(1, num_items + 1, (B,))


def counts(num_items=9):
    return torch.arange(1, num_items + 2)


@split_graph
@pytest.mark.parametrize("item_gradient", ["paper", "balanced"])
def test_compiled_equals_eager(item_gradient):
    options = {"capacity": 8, "warmup_steps": 1, "item_counts": counts(), "temperature": 0.3}
    eager = CrossBatchSoftmax(3, item_gradient=item_gradient, **options)
    compiled = torch.compile(copy.deepcopy(eager), backend="aot_eager")
    for _ in range(4):
        u, v, ids = towers()
        first, second = eager(u, v, ids), compiled(u, v, ids)
        torch.testing.assert_close(second, first)
        torch.testing.assert_close(
            torch.autograd.grad(second, (u, v)), torch.autograd.grad(first, (u, v))
        )
    torch.testing.assert_close(compiled.bank.state_dict(), eager.bank.state_dict())


@pytest.mark.parametrize("mask", ["both", "batch"])
def test_compiled_loss_is_one_graph(problem, mask):
    p = problem()

    def loss(u, own, cached):
        positives = Candidates(own, p.positives.item_ids, p.positives.log_q)
        bank = Candidates(cached, p.cached.item_ids, p.cached.log_q, cached=True)
        return sampled_softmax_loss(u, positives, positives + bank, mask=mask)

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    arguments = (p.users, p.positives.embeddings, p.cached.embeddings)
    torch.testing.assert_close(compiled(*arguments), loss(*arguments))


@split_graph
def test_compiled_with_chunks_still_works_in_chunks(problem):
    p = problem()

    @torch.compile(backend="aot_eager")
    def loss(u):
        return sampled_softmax_loss(u * 2, p.positives, p.negatives, chunk_size=3)

    torch.testing.assert_close(
        loss(p.users), sampled_softmax_loss(p.users * 2, p.positives, p.negatives)
    )
