"""Towers that read text, against transformers run by hand, and what they spend."""

import json

import pytest
import torch
from torch import nn

from crossbatch.models import ITEM_TOWERS, FeatureTable, Inputs, TwoTower, YouTubeDNN, build_model
from crossbatch.models.text_towers import TextEncoder, Transformer

# Rows of token ids, row 0 is padding; item 3 has no text.
ROWS = [[], [5, 6, 7], [9], [], [6, 6, 8, 4, 3], [7, 5]]
NUM_TOKENS, DIM = 11, 8


def ragged(rows, kind="tokens", size=NUM_TOKENS):
    offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
    return FeatureTable(kind, torch.tensor([t for row in rows for t in row]).int(), offsets, size)


def inputs(**more):
    tables = {"title": ragged(ROWS), "tags": ragged(ROWS[::-1], "multi_valued")}
    return Inputs(len(ROWS) - 1, DIM, tables, **more)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """The folder of a tiny BERT with random weights."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=NUM_TOKENS,
        hidden_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    torch.manual_seed(1)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def options(name, bert):
    if name == "huggingface":
        return {"model": str(bert)}
    return {"width": 12, "layers": 1, "heads": 2, "dropout": 0.0}


class Counting(nn.Module):
    """States of a transformer, and the rows that it was given."""

    def __init__(self, states):
        super().__init__()
        self.states, self.dim, self.max_tokens = states, states.dim, states.max_tokens
        self.rows = []

    def forward(self, tokens, mask):
        self.rows += [row[keep].tolist() for row, keep in zip(tokens, mask, strict=True)]
        return self.states(tokens, mask)


def test_a_pooled_vector_is_the_encoders_own(bert):
    """One text at a time, without padding, through the library itself."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModel.from_pretrained(bert).eval()
    for pooling in ("mean", "cls"):
        tower = ITEM_TOWERS["huggingface"](
            inputs(), model=str(bert), column="title", pooling=pooling
        ).eval()
        ids = torch.tensor([4, 1, 3, 5, 1])
        found = tower.encoder(ids)
        for row, item in zip(found, ids.tolist(), strict=True):
            expected = torch.zeros(12)
            if ROWS[item]:
                with torch.no_grad():
                    states = reference(torch.tensor([ROWS[item]])).last_hidden_state[0]
                expected = states.mean(dim=0) if pooling == "mean" else states[0]
            torch.testing.assert_close(row.detach(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ITEM_TOWERS)
def test_ids_text_and_other_content_stand_side_by_side(name, bert):
    tower = ITEM_TOWERS[name](inputs(), **options(name, bert), hidden=(7,), id_dim=3).eval()
    ids = torch.tensor([2, 4])
    parts = [tower.table(ids), tower.content(ids), tower.encoder(ids)]
    assert tower.width == sum(part.shape[1] for part in parts) == 3 + 32 + 12
    torch.testing.assert_close(tower(ids), tower.layers(torch.cat(parts, dim=1)))
    alone = ITEM_TOWERS[name](
        Inputs(5, DIM, {"title": ragged(ROWS)}), **options(name, bert), id=False
    )
    assert alone.table is None
    assert alone.content is None
    assert alone(ids).shape == (2, DIM)


@pytest.mark.parametrize("name", ITEM_TOWERS)
@pytest.mark.parametrize("history", ["id", "content", "item_tower"])
def test_gradients_reach_every_weight_of_the_encoder(name, history, bert):
    torch.manual_seed(0)
    tables = inputs().item_features
    model = build_model(
        "youtube_dnn",
        5,
        DIM,
        item_tower=name,
        item=options(name, bert),
        item_features=tables,
        history=history,
        sparse=False,
    )
    u, v = model(torch.tensor([[1, 2], [4, 5], [5, 1]]), torch.tensor([2, 1, 4]))
    nn.functional.cross_entropy(u @ v.T, torch.arange(3)).backward()
    for each, parameter in model.item_tower.encoder.named_parameters():
        assert ("pooler" in each) == (parameter.grad is None), each


@pytest.mark.parametrize("history", ["content", "item_tower"])
def test_each_distinct_item_of_a_batch_is_encoded_once(history):
    tower = ITEM_TOWERS["text_transformer"](inputs(), width=8, heads=2, dropout=0.0)
    tower.encoder.states = counting = Counting(tower.encoder.states)
    width = tower.width if history == "content" else DIM
    model = TwoTower(tower, YouTubeDNN(DIM, input_dim=width), history=history)
    u, v = model(torch.tensor([[1, 2, 0], [4, 1, 3]]), torch.tensor([2, 2]))
    assert sorted(counting.rows) == sorted(ROWS[item] for item in (1, 2, 4))
    # The same numbers and gradients as where nothing is shared.
    (u * v).sum().backward()
    shared = [p.grad.clone() for p in counting.parameters()]
    model.zero_grad()
    users = torch.cat([model.users(torch.tensor([row])) for row in ([1, 2], [4, 1, 3])])
    (users[:, 0] * torch.cat([model.items(torch.tensor([2]))] * 2)).sum().backward()
    for mine, parameter in zip(shared, counting.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, atol=1e-5, rtol=1e-4)
    assert tower.encoder._batch is None


def test_a_frozen_encoder_encodes_an_item_once_ever(bert):
    tower = ITEM_TOWERS["huggingface"](
        inputs(), model=str(bert), column="title", frozen_layers=-1
    ).train()
    encoder = tower.encoder
    encoder.states = counting = Counting(encoder.states)
    first = encoder(torch.tensor([1, 4]))
    again = encoder(torch.tensor([4, 2, 1]))
    assert sorted(counting.rows) == sorted([ROWS[1], ROWS[4], ROWS[2]])
    assert torch.equal(again[[2, 0]], first)
    assert not first.requires_grad
    assert not encoder.training  # no dropout, whatever the mode of the rest
    assert tower.layers.training
    # Loaded weights are other weights.
    state = {name: 2 * value for name, value in tower.state_dict().items()}
    tower.load_state_dict(state)
    assert not torch.allclose(encoder(torch.tensor([1, 4])), first)


def test_layers_below_n_are_frozen(bert):
    tower = ITEM_TOWERS["huggingface"](inputs(), model=str(bert), column="title", frozen_layers=2)
    for name, parameter in tower.encoder.states.model.named_parameters():
        below = name.startswith(("embeddings", "encoder.layer.0", "encoder.layer.1"))
        assert parameter.requires_grad != below, name
    with pytest.raises(ValueError, match=r"frozen_layers must be 0 to 3.*got 4"):
        ITEM_TOWERS["huggingface"](inputs(), model=str(bert), column="title", frozen_layers=4)


@pytest.mark.parametrize("name", ITEM_TOWERS)
def test_checkpointing_gives_the_same_gradients(name, bert):
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        tower = ITEM_TOWERS[name](
            inputs(), **options(name, bert), column="title", checkpointing=checkpointing
        )
        for module in tower.modules():  # dropout draws again in the backward pass
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        tower.encoder(torch.tensor([1, 2, 4])).square().sum().backward()
        found.append([p.grad for p in tower.encoder.parameters() if p.grad is not None])
    assert found[0]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ITEM_TOWERS)
def test_bfloat16_autocast(name, bert):
    torch.manual_seed(0)
    tower = ITEM_TOWERS[name](inputs(), **options(name, bert), column="title").eval()
    exact = tower(torch.tensor([1, 3, 4]))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = tower(torch.tensor([1, 3, 4]))
    rounded.sum().backward()
    assert rounded.dtype is torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.05, rtol=0.05)


def test_the_transformer_reads_order_and_not_padding():
    torch.manual_seed(0)
    states = Transformer(NUM_TOKENS, 8, heads=2, dropout=0.0, max_tokens=4).eval()
    encoder = TextEncoder(ragged([[], [1, 2], [2, 1], [1, 2, 3, 4, 5], [1, 2, 3, 4]]), states)
    one, two, long, cut = encoder(torch.tensor([1, 2, 3, 4]))
    assert not torch.allclose(one, two)
    assert torch.allclose(long, cut)  # what is beyond `max_tokens` is not read
    torch.testing.assert_close(one, encoder(torch.tensor([1]))[0])


def test_a_stored_config_takes_the_place_of_the_folder(bert, tmp_path):
    config = json.loads((bert / "config.json").read_text())
    hostile = config | {
        "auto_map": {"AutoModel": "evil--code.Model"},
        "_attn_implementation": "x/y",
    }
    tower = ITEM_TOWERS["huggingface"](
        inputs(weights_follow=True), model=str(tmp_path / "gone"), column="title", config=hostile
    )
    trained = ITEM_TOWERS["huggingface"](inputs(), model=str(bert), column="title")
    tower.load_state_dict(trained.state_dict())
    ids = torch.tensor([1, 4])
    torch.testing.assert_close(tower.eval()(ids), trained.eval()(ids))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("text_transformer", {"column": "tags"}, "item.column is 'tags', but .* are: title"),
        ("text_transformer", {"heads": 5}, "heads must divide width"),
        ("text_transformer", {"pooling": "max"}, "pooling must be one of mean, cls, got 'max'"),
        ("huggingface", {"model": "no/such/folder"}, "must be the folder of a Hugging Face"),
    ],
)
def test_mistakes_are_one_sentence(name, change, message, bert):
    with pytest.raises(ValueError, match=message) as caught:
        ITEM_TOWERS[name](inputs(), **(options(name, bert) | change))
    assert "\n" not in str(caught.value)


def test_text_that_does_not_fit_the_encoder_is_refused(bert):
    make, folder = ITEM_TOWERS["huggingface"], str(bert)
    more = Inputs(2, DIM, {"title": ragged([[], [1], [2]], size=12)})
    with pytest.raises(ValueError, match="token ids up to 11, but the encoder knows 11"):
        make(more, model=folder)
    long = Inputs(2, DIM, {"title": ragged([[], [1], [2] * 17])})
    with pytest.raises(ValueError, match="takes 16: prepare the dataset with --max-tokens 16"):
        make(long, model=folder)
    with pytest.raises(ValueError, match="needs a feature of token ids"):
        make(Inputs(2, DIM), model=folder)
    both = Inputs(2, DIM, {"a": ragged([[], [1], [2]]), "b": ragged([[], [1], [2]])})
    with pytest.raises(ValueError, match=r"item\.column must name one of a, b"):
        make(both, model=folder)
