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
