import pytest
import torch
from torch import nn

from crossbatch.models import build_model
from crossbatch.training import Adam


def test_whole_model_follows_torch_adam():
    """A model of table, linear layer and tied history against torch.optim.Adam on a dense copy."""
    torch.manual_seed(0)
    ours = build_model("youtube_dnn", 20, 6)
    theirs = build_model("youtube_dnn", 20, 6, item={"sparse": False})
    theirs.load_state_dict(ours.state_dict())
    adam = Adam(ours, lr=0.01)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for _ in range(80):
        history = torch.randint(0, 21, (8, 5))
        history[:, 0].clamp_(min=1)
        items = torch.randint(1, 21, (8,))
        losses = []
        for model in (ours, theirs):
            u, v = model(history, items)
            losses.append(nn.functional.cross_entropy(u @ v.T, torch.arange(8)))
            losses[-1].backward()
        adam.step()
        reference.step()
        reference.zero_grad()
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
    adam.flush()
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], rtol=1e-3, atol=2e-5)


def test_learned_temperature_is_updated_but_never_decays():
    model = build_model("youtube_dnn", 5, 4)
    temperature = nn.Parameter(torch.tensor(1.0))
    adam = Adam(model, lr=0.1, weight_decay=0.5, extra=[temperature])
    temperature.grad = torch.tensor(0.0)
    adam.step()
    assert float(temperature.detach()) == 1.0
    temperature.grad = torch.tensor(1.0)
    adam.step()
    assert float(temperature.detach()) < 1.0


def test_step_returns_the_scheduled_rate_and_clears_gradients():
    model = build_model("youtube_dnn", 5, 4)
    adam = Adam(model, lr=0.1, schedule="cosine", total_steps=2)
    u, v = model(torch.tensor([[1, 2]]), torch.tensor([3]))
    (u * v).sum().backward()
    assert abs(adam.step() - 0.05) < 1e-9
    assert all(parameter.grad is None for parameter in model.parameters())


def test_state_round_trip():
    torch.manual_seed(1)
    model = build_model("gru4rec", 12, 4)
    adam = Adam(model, lr=0.05)

    def step(model, adam, seed):
        torch.manual_seed(seed)
        u, v = model(torch.randint(1, 13, (4, 3)), torch.randint(1, 13, (4,)))
        nn.functional.cross_entropy(u @ v.T, torch.arange(4)).backward()
        adam.step()

    for seed in range(5):
        step(model, adam, seed)
    twin = build_model("gru4rec", 12, 4)
    twin.load_state_dict(model.state_dict())
    resumed = Adam(twin, lr=0.05)
    resumed.load_state({name: value.clone() for name, value in adam.state().items()})
    for seed in range(5, 10):
        step(model, adam, seed)
        step(twin, resumed, seed)
    for name, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


def steps_of(model, optimizer, seed, zero_grad=None, clip=None):
    torch.manual_seed(seed)
    u, v = model(torch.randint(1, 21, (8, 5)), torch.randint(1, 21, (8,)))
    # The softmax alone gives the last bias a gradient of 0, and Adam steps by its rounding error.
    (10 * nn.functional.cross_entropy(u @ v.T, torch.arange(8)) + (v - 1).square().sum()).backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    if zero_grad is not None:
        zero_grad()


def twins(**item):
    torch.manual_seed(0)
    ours = build_model("gru4rec", 20, 6, item=item)
    theirs = build_model("gru4rec", 20, 6, item={"sparse": False, **item})
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def assert_close(ours, theirs):
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], rtol=1e-3, atol=2e-5)


def test_parts_have_rates_of_their_own_and_all_warm_up():
    """Against torch.optim.Adam with parameter groups and LambdaLR."""
    ours, theirs = twins(hidden=(5,))
    rates = {"item_tower": 0.002, "item_tower.layers": 0.02}
    adam = Adam(ours, lr=0.01, lr_of=rates, warmup_steps=7)
    groups = {"item_tower.table": 0.002, "item_tower.layers": 0.02, "user_tower": 0.01}
    reference = torch.optim.Adam(
        [
            {"params": [p for n, p in theirs.named_parameters() if n.startswith(part)], "lr": lr}
            for part, lr in groups.items()
        ]
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(reference, lambda step: min(1, (step + 1) / 7))
    for seed in range(30):
        steps_of(ours, adam, seed)
        steps_of(theirs, reference, seed, reference.zero_grad)
        schedule.step()
    adam.flush()
    assert_close(ours, theirs)


def test_clipping_counts_layers_and_rows_together():
    """Rows that a batch reads several times, and layers, against torch's own clipping."""
    ours, theirs = twins()
    adam = Adam(ours, lr=0.01, clip_norm=0.05)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for seed in range(20):
        steps_of(ours, adam, seed)
        steps_of(theirs, reference, seed, reference.zero_grad, clip=0.05)
    adam.flush()
    assert_close(ours, theirs)


def test_a_small_gradient_is_not_clipped():
    ours, plain = twins()[0], twins()[0]
    clipped, free = Adam(ours, lr=0.01, clip_norm=1e6), Adam(plain, lr=0.01)
    for seed in range(3):
        steps_of(ours, clipped, seed)
        steps_of(plain, free, seed)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name


def test_a_part_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"lr_of names 'item_tower\.encoder'.*item_tower\.table"):
        Adam(build_model("youtube_dnn", 5, 4), lr_of={"item_tower.encoder": 1e-5})
