import pytest
import torch
from torch import nn

from crossbatch.models import SASRec
from crossbatch.models.history import PaddedHistory


def torch_layers(tower: SASRec) -> list[nn.TransformerEncoderLayer]:
    """The same blocks as PyTorch's own pre-norm encoder layers."""
    layers = []
    for block in tower.blocks:
        layer = nn.TransformerEncoderLayer(
            tower.dim, block.heads, tower.dim, 0.0, batch_first=True, norm_first=True
        )
        queries, weights = layer.self_attn, block.query_key_value
        queries.in_proj_weight.data = torch.cat([part.weight for part in weights]).detach()
        queries.in_proj_bias.data = torch.cat([part.bias for part in weights]).detach()
        queries.out_proj.load_state_dict(block.mix.state_dict())
        layer.linear1.load_state_dict(block.network[0].state_dict())
        layer.linear2.load_state_dict(block.network[3].state_dict())
        layer.norm1.load_state_dict(block.attention_norm.state_dict())
        layer.norm2.load_state_dict(block.network_norm.state_dict())
        layers.append(layer.double())
    return layers


@pytest.mark.parametrize("heads", [1, 2])
def test_equals_torchs_encoder_on_each_row_alone(heads):
    torch.manual_seed(0)
    tower = SASRec(8, heads=heads, dropout=0.0, max_length=4).double()
    for parameter in tower.parameters():
        nn.init.normal_(parameter, std=0.5)
    history, lengths = torch.randn(4, 6, 8).double(), [6, 1, 0, 3]
    users = tower(PaddedHistory(history, torch.arange(6) < torch.tensor(lengths)[:, None]))[:, 0]
    for user, row, length in zip(users, history, lengths, strict=True):
        if length == 0:
            assert torch.equal(user, torch.zeros(8).double())
            continue
        ages = torch.arange(length).flip(0).clamp(max=3)  # 0 is the latest item
        x = (row[:length] * 8**0.5 + tower.positions.weight[ages])[None]
        future = torch.ones(length, length).triu(1).bool()
        for layer in torch_layers(tower):
            x = layer(x, src_mask=future)
        torch.testing.assert_close(user, tower.norm(x[0, -1]))


def test_order_matters():
    torch.manual_seed(0)
    tower, history = SASRec(8).eval(), torch.randn(1, 5, 8)
    mask = torch.ones(1, 5, dtype=torch.bool)
    assert not torch.allclose(
        tower(PaddedHistory(history, mask)), tower(PaddedHistory(history.flip(1), mask)), atol=1e-3
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads must divide dim, got heads=3 and dim=8"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"blocks": 0}, "blocks must be at least 1, got 0"),
    ],
)
def test_rejects_impossible_options(options, message):
    with pytest.raises(ValueError, match=message):
        SASRec(8, **options)
