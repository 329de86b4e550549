"""States that someone forged, arguments of other kinds, and several threads on one loss."""

import contextlib
import copy
import os
import random
import threading

import pytest
import torch

from crossbatch.negatives import CrossBatchSoftmax, MemoryBank
from crossbatch.negatives.loss import NonFiniteLossError

CAPACITY, DIM = 8, 3
MUTATIONS = max(1000, 40 * int(os.environ.get("CROSSBATCH_FAULTS", "0")))


def filled():
    torch.manual_seed(0)
    loss = CrossBatchSoftmax(dim=DIM, capacity=CAPACITY, warmup_steps=0)
    for _ in range(4):
        loss(torch.randn(3, DIM), torch.randn(3, DIM), torch.arange(3))
    return loss


def mutated(state, rng):
    """The state with one tensor changed."""
    name = rng.choice(sorted(state))
    x = state[name]
    changes = [
        lambda: torch.full_like(x, rng.choice([-(10**8), -3000, -1, 9, 17, 1024, 2**31, 2**62])),
        lambda: x.to(rng.choice([torch.float64, torch.int32, torch.bool, torch.complex64])),
        lambda: x.flatten()[: x.numel() // 2].clone(),
        lambda: torch.cat([x.flatten(), x.flatten()]),
        lambda: x.unsqueeze(0),
        lambda: torch.full_like(x.float(), rng.choice([float("nan"), float("inf"), 1e38])),
        lambda: x.to("meta"),
        lambda: rng.choice([None, 3, "x", [1], x.numpy()]),
        lambda: x.t().contiguous().t() if x.dim() == 2 else x.clone(),
    ]
    return state | {name: rng.choice(changes)()}


def test_mutated_states_are_refused_or_harmless():
    """A cursor or a fill out of range once was a place in memory."""
    rng, whole, refused = random.Random(20211), filled().state_dict(), 0
    whole = {name: value.clone() for name, value in whole.items()}
    for _ in range(MUTATIONS):
        loss = CrossBatchSoftmax(dim=DIM, capacity=CAPACITY, warmup_steps=0)
        try:
            loss.load_state_dict(mutated(whole, rng))
        except (ValueError, RuntimeError):
            refused += 1
            continue
        with contextlib.suppress(NonFiniteLossError):  # of vectors too large: one sentence
            loss(torch.randn(3, DIM), torch.randn(3, DIM), torch.arange(3))
        assert len(loss.bank) <= CAPACITY
    assert MUTATIONS / 2 < refused < MUTATIONS


@pytest.mark.parametrize(("cursor", "fill"), [(-(10**8), 0), (-3000, 0), (1024, 1024), (3, 9)])
def test_counters_beyond_the_bank_are_refused(cursor, fill):
    state = filled().state_dict()
    state |= {"bank.cursor": torch.tensor(cursor), "bank.fill": torch.tensor(fill)}
    with pytest.raises(ValueError, match="bank"):
        filled().load_state_dict(state)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", "a"),
        ("temperature", None),
        ("dim", "4"),
        ("capacity", 2.5),
        ("warmup_steps", "2"),
        ("chunk_size", "2"),
        ("mask", []),
        ("bank_dtype", []),
        ("item_counts", torch.zeros(5)),
        ("item_counts", torch.ones(5, dtype=torch.complex64)),
    ],
)
def test_options_of_other_kinds_are_refused(option, value):
    with pytest.raises(ValueError, match=option.removeprefix("bank_")):
        CrossBatchSoftmax(**({"dim": 4} | {option: value}))


def test_the_device_meta_is_refused_in_a_sentence():
    loss = filled()
    rows = loss.bank.read().embeddings.clone()
    with pytest.raises(ValueError, match="device meta"):
        loss.to("meta")
    assert torch.equal(loss.bank.read().embeddings, rows)


def test_one_loss_serves_several_threads():
    loss, failures = CrossBatchSoftmax(dim=DIM, capacity=50, warmup_steps=0), []

    def train(rows):
        try:
            for _ in range(300):
                u, v = torch.randn(2, rows, DIM, requires_grad=True)
                loss(u, v, torch.arange(rows)).backward()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(rows,)) for rows in (7, 8, 9, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert int(loss.bank.step) == 4 * 300
    assert len(loss.bank) == 50


def test_a_bank_can_still_be_copied():
    bank = MemoryBank(4, 2)
    assert copy.deepcopy(bank).capacity == 4
