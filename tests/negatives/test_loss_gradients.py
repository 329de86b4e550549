"""The hand-written gradient against plain autograd, finite differences, and its cost."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from crossbatch.negatives import Candidates, sampled_softmax_loss
from crossbatch.negatives.loss import row_losses

MASKS = ("both", "batch", "none")
CHUNKS = (None, 1, 3, 5, 100)


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("chunk_size", CHUNKS)
@pytest.mark.parametrize("mask", MASKS)
def test_equals_plain_autograd(problem, mask, chunk_size, excluding):
    for seed in range(3):
        p = problem(seed, B=6, M=11, extra=4)
        exclude = torch.rand(6, len(p.negatives)) < 0.3 if excluding else None
        plain = row_losses(p.users, p.positives, p.negatives, mask=mask, exclude=exclude)
        fused = sampled_softmax_loss(
            p.users,
            p.positives,
            p.negatives,
            mask=mask,
            exclude=exclude,
            chunk_size=chunk_size,
            reduction="none",
        )
        torch.testing.assert_close(fused, plain)
        weight = torch.rand(6, dtype=torch.float64)
        leaves = (p.users, p.positives.embeddings, p.extra.embeddings)
        torch.testing.assert_close(
            torch.autograd.grad(fused @ weight, leaves), torch.autograd.grad(plain @ weight, leaves)
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("mask", MASKS)
def test_gradcheck_on_users_positives_and_live_negatives(problem, mask, chunk_size, reduction):
    p = problem(3)
    exclude = torch.rand(5, len(p.negatives)) < 0.2

    def loss(users, own, extra):
        positives = Candidates(own, p.positives.item_ids, p.positives.log_q)
        more = Candidates(extra, p.extra.item_ids, p.extra.log_q)
        return sampled_softmax_loss(
            users,
            positives,
            positives + p.cached + more,
            temperature=0.5,
            mask=mask,
            exclude=exclude,
            chunk_size=chunk_size,
            reduction=reduction,
        )

    assert gradcheck(loss, (p.users, p.positives.embeddings, p.extra.embeddings))


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("frozen", ["users", "positives", "extra"])
def test_a_frozen_tower_gets_no_gradient_and_changes_no_other(problem, frozen, chunk_size):
    whole, part = problem(1), problem(1)
    leaves = {
        "users": part.users,
        "positives": part.positives.embeddings,
        "extra": part.extra.embeddings,
    }
    leaves[frozen].requires_grad_(False)
    for p in (whole, part):
        sampled_softmax_loss(p.users, p.positives, p.negatives, chunk_size=chunk_size).backward()
    assert leaves[frozen].grad is None
    full = {
        "users": whole.users,
        "positives": whole.positives.embeddings,
        "extra": whole.extra.embeddings,
    }
    for name, leaf in leaves.items():
        if name != frozen:
            torch.testing.assert_close(leaf.grad, full[name].grad)


@pytest.mark.parametrize("function", ["fused", "plain"])
def test_cached_columns_are_constants_even_if_they_carry_a_graph(problem, function):
    p = problem()
    live = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    cached = Candidates(live, torch.tensor([90, 91]), torch.zeros(2), cached=True)
    negatives = p.positives + cached
    if function == "fused":
        rows = sampled_softmax_loss(p.users, p.positives, negatives, reduction="none")
    else:
        rows = row_losses(p.users, p.positives, negatives)
    assert torch.autograd.grad(rows.sum(), live, allow_unused=True) == (None,)


def test_changing_a_live_column_in_place_before_backward_is_caught(problem):
    p = problem()
    extra = Candidates(p.extra.embeddings * 1.0, p.extra.item_ids, p.extra.log_q)
    loss = sampled_softmax_loss(p.users, p.positives, p.positives + extra, reduction="none")
    with torch.no_grad():
        extra.embeddings.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()


def test_a_second_derivative_is_refused_rather_than_wrong(problem):
    p = problem()
    loss = sampled_softmax_loss(p.users, p.positives, p.negatives)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, p.users, create_graph=True)


class LargestTensor(TorchDispatchMode):
    """Number of elements of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return out


@pytest.mark.parametrize(("chunk_size", "widest"), [(None, 640), (40, 40)])
def test_no_tensor_is_larger_than_a_block_of_logits(problem, chunk_size, widest):
    """No [B, N, d], only N = 624 columns and the own one, in full lines of 16; with chunks, less.

    The bank itself is 600 × 16 = 9,600.
    """
    p = problem(B=24, M=600, extra=0, d=16, num_items=10_000, dtype=torch.float32)
    negatives = p.positives + p.cached
    with LargestTensor() as seen:
        loss = sampled_softmax_loss(p.users, p.positives, negatives, chunk_size=chunk_size)
        loss.backward()
    assert seen.numel <= max(24 * widest, 600 * 16)


def test_nothing_is_saved_for_the_bank(problem):
    p = problem(B=8, M=500, extra=0, d=4, dtype=torch.float32)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: saved.append(x.numel()) or x, lambda x: x
    ):
        sampled_softmax_loss(p.users, p.positives, p.positives + p.cached)
    assert max(saved) <= 8 * 4  # gradients of users and of the batch's items


MEMORY = """
    import resource, sys, torch
    from crossbatch.negatives import Candidates, sampled_softmax_loss
    torch.set_num_threads(1)
    B, d, M, chunk_size = 4096, 64, int(sys.argv[1]), 2048
    u, v = (torch.randn(B, d, requires_grad=True) for _ in range(2))
    batch = Candidates(v, torch.randint(1, 10**6, (B,)), torch.zeros(B))
    bank = Candidates(torch.randn(M, d), torch.randint(1, 10**6, (M,)), torch.zeros(M), cached=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sampled_softmax_loss(u, batch, batch + bank, chunk_size=chunk_size).backward()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_chunked_memory_does_not_grow_with_the_bank():
    """B = 4096: [B, M] logits would take 1.6 GB at M = 100,000; a block of 2048 takes 32 MiB."""

    def peak_kib(M):
        code = textwrap.dedent(MEMORY)
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, str(M)],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(run.stdout)

    small, large = peak_kib(10_000), peak_kib(100_000)
    assert large < 300 * 1024
    assert large - small < 40 * 1024
