import inspect

import pytest
import torch

from crossbatch.models import MIND, MODELS, FeatureTable, build_model
from crossbatch.queries import Queries


def test_options_reach_their_places():
    model = build_model(
        "mind", 20, 8, tower={"interests": 2}, item={"hidden": (5,)}, normalize=True, history="id"
    )
    assert isinstance(model.user_tower, MIND)
    assert model.user_tower.num_interests == 2
    assert model.item_tower.layers[0].weight.shape == (5, 8)
    assert model.normalize


@pytest.mark.parametrize("name", MODELS)
def test_towers_take_a_width_and_keyword_options_with_defaults(name):
    first, *options = inspect.signature(MODELS[name]).parameters.values()
    assert first.name == "dim"
    assert all(option.kind is option.KEYWORD_ONLY for option in options)
    assert all(option.default is not option.empty for option in options)


@pytest.mark.parametrize(
    ("name", "tower"), [*((name, {}) for name in MODELS), ("gru4rec", {"reset_before": False})]
)
@pytest.mark.parametrize("source", ["id", "content", "item_tower"])
def test_exported_users_equal_the_model(name, tower, source, make_history):
    torch.manual_seed(0)
    categories = FeatureTable("categorical", torch.arange(51) % 7, num_values=7)
    features = {"category": categories} if source == "content" else {}
    model = build_model(name, 50, 8, tower=tower, history=source, item_features=features).eval()

    class Users(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, history):
            interests = self.model.users(history)
            if isinstance(interests, Queries):  # graphs give tensors
                return interests.vectors, interests.log_weights.exp()
            return interests

    history = make_history(B=8)
    shapes = {"history": {0: torch.export.Dim("users", min=1, max=4096)}}
    program = torch.export.export(Users().eval(), (history,), dynamic_shapes=shapes)
    other = make_history(B=5, seed=3)
    expected, found = model.users(other), program.module()(other)
    if isinstance(expected, Queries):  # the graph's are as many as a history may have items
        width = expected.vectors.shape[1]
        assert not found[1][:, width:].any()
        found = [part[:, :width] for part in found]
        expected = [expected.vectors, expected.log_weights.exp()]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown model 'gru4rek': did you mean 'gru4rec'"):
        build_model("gru4rek", 20)
    with pytest.raises(ValueError, match="unknown model 'x': choose from youtube_dnn, gru4rec"):
        build_model("x", 20)
