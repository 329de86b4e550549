import numpy as np
import pytest
import torch
from torch.nn import functional

from crossbatch import kernels
from crossbatch.kernels.routing import padded_interests, squash
from crossbatch.models import MIND, YouTubeDNN
from crossbatch.models.history import PaddedHistory

LENGTHS = [6, 1, 0, 3, 5]


def squashed(v: np.ndarray) -> np.ndarray:
    square = v @ v
    return v * (square / (1 + square)) / np.sqrt(square + 1e-9)


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def reference(tower: MIND, row: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Interests `[K, d]` of the real items `[n, d]` of one history; logits `[K, n]`."""
    weight = tower.bilinear.weight.detach().numpy()
    bias = 0 if tower.bilinear.bias is None else tower.bilinear.bias.detach().numpy()
    mapped = [weight @ x + bias for x in row]
    logits = logits.copy()
    K, n = logits.shape
    for _ in range(tower.iterations):
        shares = [softmax(logits[:, t]) for t in range(n)]  # over interests, at each position
        capsules = [
            squashed(sum((shares[t][k] * mapped[t] for t in range(n)), np.zeros(row.shape[1])))
            for k in range(K)
        ]
        for k in range(K):
            for t in range(n):
                logits[k, t] += mapped[t] @ capsules[k]
    if isinstance(tower.dense, torch.nn.Identity):
        return np.stack(capsules)
    layer = tower.dense[0]
    matrix, offset = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    return np.stack([np.maximum(matrix @ capsule + offset, 0) for capsule in capsules])


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize(("relu", "bias"), [(True, True), (False, False)])
@pytest.mark.parametrize(
    ("dtype", "compiled", "atol"),
    [(torch.float64, False, 1e-10), (torch.float32, False, 1e-5), (torch.float32, True, 1e-5)],
)
def test_equals_the_definition(iterations, relu, bias, dtype, compiled, atol, monkeypatch):
    if compiled and not kernels.available():
        pytest.skip("needs numba")
    monkeypatch.setattr(kernels, "available", lambda: compiled)
    torch.manual_seed(0)
    tower = MIND(8, iterations=iterations, relu=relu, bias=bias, routing="fixed").to(dtype)
    for parameter in tower.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    history = torch.randn(5, 6, 8).to(dtype)
    mask = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    interests = tower(PaddedHistory(history, mask)).detach().numpy()
    for row, length, users in zip(history.numpy(), LENGTHS, interests, strict=True):
        logits = tower.fixed_logits[:length].T.numpy()
        np.testing.assert_allclose(users, reference(tower, row[:length], logits), atol=atol)


def test_gradient_flows_through_the_last_sum_only():
    """With its weights held fixed, the last weighted sum must give the whole gradient."""
    torch.manual_seed(0)
    bilinear = torch.nn.Linear(4, 4).double()
    history = torch.randn(2, 5, 4).double().requires_grad_()
    mask, logits = torch.ones(2, 5, dtype=torch.bool), torch.randn(2, 3, 5).double()
    probe = torch.randn(2, 3, 4).double()
    (
        padded_interests(history, mask, logits, 3, bilinear.weight, bilinear.bias, None, None)
        * probe
    ).sum().backward()
    found = [history.grad.clone(), bilinear.weight.grad.clone(), bilinear.bias.grad.clone()]
    bilinear.zero_grad()
    again = history.detach().requires_grad_()
    mapped = bilinear(again)
    still = mapped.detach()
    for _ in range(2):
        logits = logits + squash(logits.softmax(1) @ still) @ still.transpose(1, 2)
    (squash(logits.softmax(1) @ mapped) * probe).sum().backward()
    for gradient, tensor in zip(found, (again, bilinear.weight, bilinear.bias), strict=True):
        torch.testing.assert_close(gradient, tensor.grad)


@pytest.mark.skipif(not kernels.available(), reason="needs numba")
@pytest.mark.parametrize("interests", [1, 4, 5])
@pytest.mark.parametrize(("relu", "bias"), [(True, True), (False, False)])
@pytest.mark.parametrize("scale", [1.0, 40.0], ids=["usual", "shares that vanish"])
def test_compiled_gradients_are_those_of_autograd(interests, relu, bias, scale):
    """Of some interests only: what no loss has seen is left out of the compiled gradients."""
    torch.manual_seed(0)
    tower = MIND(8, interests=interests, relu=relu, bias=bias, routing="fixed")
    for parameter in tower.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    mask = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    probe = torch.randn(5, interests, 8) * (torch.rand(5, interests, 1) < 0.6)
    vectors = torch.where(mask.unsqueeze(2), scale * torch.randn(5, 6, 8), 0.0)
    found = []
    for compiled in (True, False):
        tower.to(torch.float32 if compiled else torch.float64).zero_grad()
        history = vectors.to(tower.bilinear.weight.dtype, copy=True).requires_grad_()
        (tower(PaddedHistory(history, mask)) * probe).sum().backward()
        gradients = [history.grad, *(parameter.grad for parameter in tower.parameters())]
        found.append([gradient.double() for gradient in gradients])
    for fast, truth in zip(*found, strict=True):
        torch.testing.assert_close(fast, truth, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.skipif(not kernels.available(), reason="needs numba")
def test_no_second_derivative_of_compiled_interests():
    tower = MIND(4)
    history = torch.randn(2, 3, 4, requires_grad=True)
    interests = tower(PaddedHistory(history, torch.ones(2, 3, dtype=torch.bool)))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(interests.sum(), history, create_graph=True)


def test_squash_by_hand():
    capsule = torch.tensor([[[3.0, 4.0]]])  # length 5 becomes 25/26
    torch.testing.assert_close(squash(capsule), capsule / 5 * 25 / 26)
    assert torch.equal(squash(torch.zeros(1, 1, 2)), torch.zeros(1, 1, 2))


def test_random_routing_is_fresh_in_training_and_fixed_in_evaluation():
    torch.manual_seed(0)
    tower = MIND(8)
    history, mask = torch.randn(2, 6, 8), torch.ones(2, 6, dtype=torch.bool)
    assert not torch.equal(tower(PaddedHistory(history, mask)), tower(PaddedHistory(history, mask)))
    tower.eval()
    assert torch.equal(tower(PaddedHistory(history, mask)), tower(PaddedHistory(history, mask)))
    tower.stochastic_evaluation = True
    assert not torch.equal(tower(PaddedHistory(history, mask)), tower(PaddedHistory(history, mask)))


def test_evaluation_leaves_the_random_state_alone():
    tower = MIND(8).eval()
    state = torch.get_rng_state()
    tower(
        PaddedHistory(
            torch.randn(2, 6, 8, generator=torch.Generator()), torch.ones(2, 6, dtype=torch.bool)
        )
    )
    assert torch.equal(state, torch.get_rng_state())


def test_padding_changes_neither_draws_nor_random_state():
    tower = MIND(8)
    vectors = torch.randn(5, 6, 8)
    mask = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    results, states = [], []
    for extra in (0, 4):
        torch.manual_seed(5)
        padded = functional.pad(vectors, (0, 0, 0, extra))
        results.append(tower(PaddedHistory(padded, functional.pad(mask, (0, extra)))))
        states.append(torch.get_rng_state())
    torch.testing.assert_close(results[0], results[1])
    assert torch.equal(states[0], states[1])


def test_routing_draws_are_standard_normal_truncated_at_two():
    torch.manual_seed(0)
    logits = MIND(8)._random_logits(10_000)
    assert logits.shape == (10_000, 4)
    assert logits.abs().max() <= 2
    assert logits.mean().item() == pytest.approx(0, abs=0.02)
    assert logits.std().item() == pytest.approx(0.8796, abs=0.01)  # of a normal cut at ±2


def test_histories_longer_than_the_fixed_logits():
    tower = MIND(4, routing="fixed")
    interests = tower(PaddedHistory(torch.randn(1, 300, 4), torch.ones(1, 300, dtype=torch.bool)))
    assert interests.shape == (1, 4, 4)


def test_interests_differ_and_are_non_negative_with_relu():
    torch.manual_seed(0)
    tower = MIND(16)
    interests = tower(PaddedHistory(torch.randn(8, 10, 16), torch.ones(8, 10, dtype=torch.bool)))
    assert (interests >= 0).all()
    assert (interests[:, 0] - interests[:, 1]).abs().amax(dim=1).min() > 1e-3


@pytest.mark.parametrize(("length", "available"), [(1, 1), (3, 1), (4, 2), (7, 2), (8, 3), (16, 4)])
def test_adaptive_number_of_interests(length, available):
    """max(1, min(K, log2 n)); absent interests repeat the first and take no part in routing."""
    torch.manual_seed(0)
    adaptive = MIND(8, adaptive=True, routing="fixed")
    history, mask = torch.randn(1, 16, 8), torch.arange(16)[None] < length
    interests = adaptive(PaddedHistory(history, mask))[0]
    assert len(interests.unique(dim=0)) == available
    assert all(torch.equal(interest, interests[0]) for interest in interests[available:])
    fewer = MIND(8, interests=available, routing="fixed")
    fewer.load_state_dict(
        {**adaptive.state_dict(), "fixed_logits": adaptive.fixed_logits[:, :available]}
    )
    torch.testing.assert_close(fewer(PaddedHistory(history, mask))[0], interests[:available])


def test_bilinear_bias_starts_as_in_tf1_or_at_zero():
    bias = MIND(64).bilinear.bias
    assert bias.abs().max().item() == pytest.approx(0.2165, rel=0.05)
    assert MIND(64, bias_start="zeros").bilinear.bias.abs().max() == 0
    assert MIND(64, bias=False).bilinear.bias is None


def test_one_plain_interest_is_youtube_dnn():
    """One capsule without a dense layer points where the linear map of the mean points."""
    torch.manual_seed(0)
    mind = MIND(8, interests=1, relu=False, bias_start="zeros").eval()
    youtube = YouTubeDNN(8)
    youtube.layers[0].load_state_dict(mind.bilinear.state_dict())
    history, mask = torch.randn(4, 6, 8), torch.arange(6) < torch.tensor([6, 1, 3, 5])[:, None]
    directions = [
        functional.normalize(tower(PaddedHistory(history, mask)), dim=-1)
        for tower in (mind, youtube)
    ]
    torch.testing.assert_close(*directions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interests": 0}, "interests must be at least 1, got 0"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"routing": "learned"}, "routing must be one of random, fixed, got 'learned'"),
        ({"bias_start": "ones"}, "bias_start must be one of glorot, zeros, got 'ones'"),
        ({"readout": "max"}, "readout must be one of hard, soft, got 'max'"),
    ],
)
def test_rejects_impossible_options(options, message):
    with pytest.raises(ValueError, match=message):
        MIND(8, **options)
