"""The examples of the documentation page run as they stand."""

import inspect
import re
from pathlib import Path

import torch
from torch import nn

from crossbatch.models import MODELS, TwoTower

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_first_example():
    names: dict = {}
    exec(examples()[0], names)
    assert names["u"].shape == names["v"].shape == (1, 64)
    assert names["interests"].shape == (1, 4, 64)
    assert names["vectors"].shape == (3707, 64)


def test_example_of_a_set_of_queries():
    names: dict = {}
    exec(examples()[0], names)
    exec(examples()[1], names)
    assert names["queries"].vectors.shape == (1, 3, 64)
    assert names["scores"].shape == (1, 3707)


def test_item_tower_example():
    names: dict = {"values": torch.ones(3707).int(), "offsets": torch.arange(3708)}
    exec(examples()[2], names)
    assert names["tower"](torch.tensor([1, 2])).shape == (2, 64)


def test_example_of_towers_of_ones_own():
    names: dict = {
        "torch": torch,
        "TwoTower": TwoTower,
        "MyTextEncoder": lambda: nn.Embedding(9, 4),
    }
    exec(examples()[3], names)
    users = names["model"].users(torch.tensor([[3, 5, 0], [0, 0, 0]]))
    assert torch.equal(users[0, 0], names["model"].items(torch.tensor([5]))[0])


def test_every_model_and_option_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    for name, tower in MODELS.items():
        assert f"`{name}`" in text
        for option in list(inspect.signature(tower).parameters)[1:]:
            assert f"`{option}`" in text, f"{name}: {option}"
