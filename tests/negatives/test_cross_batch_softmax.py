import copy
import io

import pytest
import torch

from crossbatch.negatives import (
    Candidates,
    CrossBatchSoftmax,
    MemoryBank,
    best_interest,
    sampled_softmax_loss,
)


def towers(B=4, d=3, num_items=9, dtype=torch.float32):
    u, v = (torch.randn(B, d, dtype=dtype, requires_grad=True) for _ in range(2))
    return u, v, torch.randint(1, num_items + 1, (B,))


def counts(num_items=9):
    return torch.arange(1, num_items + 2)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_without_bank_and_counts_it_is_cross_entropy(temperature):
    u, v, _ = towers(B=32, d=8)
    loss = CrossBatchSoftmax(8, capacity=0, temperature=temperature)(u, v, torch.arange(32))
    expected = torch.nn.functional.cross_entropy(u @ v.T / temperature, torch.arange(32))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (u, v)),
        torch.autograd.grad(expected, (u, v)),
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("item_gradient", ["paper", "balanced"])
@pytest.mark.parametrize("with_counts", [False, True])
def test_is_the_loss_over_batch_and_bank(oracle, item_gradient, with_counts):
    """Five steps against a list of past batches and the brute-force softmax."""
    table = counts() if with_counts else None
    loss_fn = CrossBatchSoftmax(
        3,
        capacity=6,
        warmup_steps=2,
        item_counts=table,
        temperature=0.5,
        item_gradient=item_gradient,
    )
    q = counts().double() / counts().sum()
    past = []
    for step in range(6):
        u, v, ids = towers()
        log_q = q[ids].log() if with_counts else torch.zeros(4, dtype=torch.float64)
        positives = Candidates(v, ids, log_q)
        rows = past[-6:] if step >= 2 else []
        negatives = positives
        if rows:
            vectors, past_ids, past_q = (torch.stack(x) for x in zip(*rows, strict=True))
            negatives = positives + Candidates(vectors, past_ids, past_q, cached=True)
        truth = oracle(u, positives, negatives, temperature=0.5, weight=torch.full((4,), 0.25))
        loss = loss_fn(u, v, ids)
        assert float(loss.detach()) == pytest.approx(float(truth.losses.mean()), rel=1e-5)
        grad_u, grad_v = torch.autograd.grad(loss, (u, v))
        scale = (3 + len(rows)) / 3 if item_gradient == "balanced" else 1
        expected = truth.positives + scale * truth.negatives[:4]
        torch.testing.assert_close(grad_u.double(), truth.users, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(grad_v.double(), expected, rtol=1e-4, atol=1e-5)
        past.extend(zip(v.detach(), ids, log_q, strict=True))


def test_it_enqueues_only_in_training_with_gradients():
    loss_fn = CrossBatchSoftmax(3, capacity=20, warmup_steps=0)
    loss_fn(*towers())
    assert len(loss_fn.bank) == 4
    before = copy.deepcopy(loss_fn.state_dict())
    with torch.no_grad():
        loss_fn(*towers())
    with torch.inference_mode():
        loss_fn(*towers())
    loss_fn.eval()
    loss_fn(*towers())
    assert all(torch.equal(before[name], value) for name, value in loss_fn.state_dict().items())


def test_evaluation_reads_the_bank():
    loss_fn = CrossBatchSoftmax(3, capacity=20, warmup_steps=0)
    loss_fn(*towers())
    u, v, ids = towers()
    loss_fn.eval()
    evaluated = loss_fn(u, v, ids)
    loss_fn.train()
    assert torch.equal(evaluated, loss_fn(u, v, ids))


@pytest.mark.parametrize("bank_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_a_round_trip_mid_fill_gives_bit_equal_losses(steps, bank_dtype):
    options = {"capacity": 10, "warmup_steps": 2, "item_counts": counts(), "bank_dtype": bank_dtype}
    loss_fn = CrossBatchSoftmax(3, **options)
    for _ in range(steps):
        loss_fn(*towers())
    file = io.BytesIO()
    torch.save(loss_fn.state_dict(), file)
    file.seek(0)
    resumed = CrossBatchSoftmax(3, **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(5):
        u, v, ids = towers()
        first, second = loss_fn(u, v, ids), resumed(u, v, ids)
        assert torch.equal(first, second)
        for a, b in zip(
            torch.autograd.grad(first, (u, v)), torch.autograd.grad(second, (u, v)), strict=True
        ):
            assert torch.equal(a, b)


def test_deepcopy_continues_alike_and_apart():
    loss_fn = CrossBatchSoftmax(3, capacity=6, warmup_steps=0, item_counts=counts())
    loss_fn(*towers())
    twin = copy.deepcopy(loss_fn)
    u, v, ids = towers()
    assert torch.equal(loss_fn(u, v, ids), twin(u, v, ids))
    twin(*towers())
    assert int(loss_fn.bank.step) == 2
    assert int(twin.bank.step) == 3


def test_half_keeps_log_q_and_the_loss_in_float32():
    loss_fn = CrossBatchSoftmax(3, capacity=6, warmup_steps=0, item_counts=counts()).half()
    log_q = loss_fn.frequency(torch.tensor([3]))
    assert log_q.dtype == loss_fn.bank.log_q.dtype == torch.float32
    for _ in range(3):
        loss = loss_fn(*towers(dtype=torch.float16))
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)


def test_autocast_towers_train():
    torch.manual_seed(3)
    user, item = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
    loss_fn = CrossBatchSoftmax(3, capacity=12, warmup_steps=0, bank_dtype="bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            u, v = user(torch.randn(4, 6)), item(torch.randn(4, 6))
            assert u.dtype == torch.bfloat16
            loss = loss_fn(u, v, torch.randint(1, 10, (4,)))
    loss.backward()
    assert loss.dtype == torch.float32
    assert item.weight.grad.dtype == torch.float32
    assert float(item.weight.grad.norm()) > 0


def test_several_interests_use_the_one_that_fits_the_positive():
    interests = torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[-3.0, 0.0], [1.0, 0.0]]]).requires_grad_()
    v, ids = torch.tensor([[2.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 2])
    # Row 0: scores 2 and 3 → the second; row 1: −3 and 1 → the second, though −3 is larger in size.
    chosen = best_interest(interests, v)
    assert chosen.tolist() == [[0, 3], [1, 0]]
    loss_fn = CrossBatchSoftmax(2, capacity=0)
    loss = loss_fn(interests, v, ids)
    assert torch.equal(loss, loss_fn(chosen.detach(), v, ids))
    loss.backward()
    assert not interests.grad[:, 0].any()
    assert interests.grad[:, 1].any(dim=1).all()


def test_one_interest_is_no_interest():
    u, v, ids = towers()
    loss_fn = CrossBatchSoftmax(3, capacity=0)
    assert torch.equal(loss_fn(u.unsqueeze(1), v, ids), loss_fn(u, v, ids))


def test_known_positives_and_exclude_leave_columns_out():
    u, v, _ = towers()
    ids = torch.tensor([1, 2, 3, 4])
    loss_fn = CrossBatchSoftmax(3, capacity=0)
    known = torch.tensor([[2, 9], [-1, -1], [1, 4], [-1, 3]])
    exclude = torch.zeros(4, 4, dtype=torch.bool)
    for row, column in [(0, 1), (2, 0), (2, 3), (3, 2)]:
        exclude[row, column] = True
    by_id = loss_fn(u, v, ids, known_positives=known, reduction="none")
    by_mask = loss_fn(u, v, ids, exclude=exclude, reduction="none")
    assert torch.equal(by_id, by_mask)
    neither = loss_fn(u, v, ids, reduction="none")
    assert (by_id < neither).tolist() == [True, False, True, True]
    more = torch.zeros(4, 4, dtype=torch.bool)
    more[1] = True
    both = loss_fn(u, v, ids, exclude=more, known_positives=known, reduction="none")
    assert both[1].tolist() == 0.0
    assert torch.equal(both[[0, 2, 3]], by_id[[0, 2, 3]])


def test_known_positives_reach_into_the_bank():
    loss_fn = CrossBatchSoftmax(3, capacity=4, warmup_steps=0)
    u, v, _ = towers()
    loss_fn(u, v, torch.tensor([11, 12, 13, 14]))
    known = torch.tensor([[11, 12, 13, 14, 1, 2, 3, 4]] * 4)
    assert loss_fn(u, v, torch.tensor([1, 2, 3, 4]), known_positives=known).tolist() == 0.0


def test_extra_negatives_join_with_gradient_and_are_not_enqueued(oracle):
    u, v, ids = towers(dtype=torch.float64)
    extra = Candidates(
        torch.randn(2, 3, dtype=torch.float64, requires_grad=True),
        torch.tensor([21, 22]),
        torch.tensor([-1.0, -2.0]),
    )
    loss_fn = CrossBatchSoftmax(3, capacity=8, warmup_steps=0)
    loss = loss_fn(u, v, ids, extra_negatives=extra)
    positives = Candidates(v, ids, torch.zeros(4))
    truth = oracle(u, positives, positives + extra, weight=torch.full((4,), 0.25))
    torch.testing.assert_close(loss, truth.losses.mean())
    torch.testing.assert_close(torch.autograd.grad(loss, extra.embeddings)[0], truth.negatives[4:])
    assert loss_fn.bank.read().item_ids.tolist() == ids.tolist()


@pytest.mark.parametrize("mask", ["both", "batch", "none"])
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_options_reach_the_loss(mask, chunk_size):
    loss_fn = CrossBatchSoftmax(3, capacity=8, warmup_steps=0, mask=mask, chunk_size=chunk_size)
    loss_fn(*towers(num_items=3))
    u, v, ids = towers(num_items=3)
    positives = Candidates(v, ids, torch.zeros(4))
    expected = sampled_softmax_loss(u, positives, positives + loss_fn.bank.read(), mask=mask)
    torch.testing.assert_close(loss_fn(u, v, ids), expected)


def test_warm_up_without_filling_starts_empty():
    loss_fn = CrossBatchSoftmax(3, capacity=8, warmup_steps=2, fill_during_warmup=False)
    sizes = []
    for _ in range(4):
        loss_fn(*towers())
        sizes.append(len(loss_fn.bank))
    assert sizes == [0, 0, 4, 8]


# Statistics


def test_stats_are_empty_before_training_and_complete_after():
    loss_fn = CrossBatchSoftmax(3, capacity=8, warmup_steps=1)
    assert loss_fn.stats() == {}
    for _ in range(3):
        loss_fn(*towers())
    stats = loss_fn.stats()
    assert stats["bank_fill"] == 8
    assert stats["bank_mean_age"] == 0.5  # two batches: ages 1 and 0
    assert stats["negatives_per_row"] + 8 * stats["masked_share"] == pytest.approx(8)
    expected = {
        *("negatives_per_row", "masked_share", "bank_fill", "bank_mean_age", "bank_staleness"),
        *("effective_negatives", "hardness", "bank_mass_share", "item_norm"),
        *("mean_direction_share", "gradient_ratio"),
    }
    assert set(stats) == expected


def test_stats_leave_no_trace():
    loss_fn = CrossBatchSoftmax(3, capacity=8, warmup_steps=0)
    u, v, ids = towers()
    loss_fn(u, v, ids).backward()
    gradients, state = [u.grad.clone(), v.grad.clone()], copy.deepcopy(loss_fn.state_dict())
    loss_fn.stats()
    assert torch.equal(gradients[0], u.grad)
    assert torch.equal(gradients[1], v.grad)
    torch.testing.assert_close(loss_fn.state_dict(), state)


def test_stats_report_the_gradient_that_the_mode_gives():
    """The ratio of a step, measured on the real gradients, for either mode."""
    for item_gradient in ("paper", "balanced"):
        torch.manual_seed(5)
        # capacity for all: the bank after the step is the bank of the step and the batch itself
        loss_fn = CrossBatchSoftmax(3, capacity=100, warmup_steps=0, item_gradient=item_gradient)
        for _ in range(10):
            loss_fn(*towers())
        u, v, ids = towers()
        loss_fn(u, v, ids).backward()
        ratio = float(v.grad.norm() / u.grad.norm())
        assert loss_fn.stats()["gradient_ratio"] == pytest.approx(ratio, rel=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda():
    here = CrossBatchSoftmax(3, capacity=8, warmup_steps=0, item_counts=counts())
    there = copy.deepcopy(here).cuda()
    for _ in range(4):
        u, v, ids = towers()
        loss = there(u.cuda(), v.cuda(), ids.cuda())
        torch.testing.assert_close(loss.cpu(), here(u, v, ids))


def test_bank_is_the_public_one():
    assert isinstance(CrossBatchSoftmax(3).bank, MemoryBank)
