"""Towers as a user of the library might write them; the tests name them by import path."""

import torch
from torch import nn

from crossbatch.models import ItemTower, TwoTower, YouTubeDNN


class Subclass(TwoTower):
    """Our two towers with other item vectors."""

    def __init__(self, inputs, *, scale=1.0):
        items = ItemTower(inputs.num_items, inputs.dim, features=inputs.item_features)
        super().__init__(
            items, YouTubeDNN(inputs.dim), history="item_tower", user_features=inputs.user_features
        )
        self.scale, self.options = scale, {"scale": scale}

    def items(self, item_ids):
        return self.scale * super().items(item_ids)


class OtherUsers(Subclass):
    """A subclass whose `users` are not its `interests`."""

    def users(self, history, user_ids=None):
        return -super().users(history, user_ids)

    def __init__(self, inputs):
        super().__init__(inputs)
        self.profile, self.options = None, {}


class Foreign(nn.Module):
    """Nothing of ours: ids alone, an embedding and torch's GRU."""

    def __init__(self, inputs, width=12):
        super().__init__()
        self.embedding = nn.Embedding(inputs.num_items + 1, width)
        self.gru = nn.GRU(width, inputs.dim, batch_first=True)
        self.out = nn.Linear(width, inputs.dim)

    def forward(self, history, item_ids, user_ids=None):
        return self.users(history)[:, 0], self.items(item_ids)

    def users(self, history, user_ids=None):
        states, _ = self.gru(self.embedding(history))
        last = ((history != 0).sum(dim=1) - 1).clamp_min(0)
        return states[torch.arange(len(last)), last].unsqueeze(1)

    def items(self, item_ids):
        return self.out(self.embedding(item_ids))


class Attention(nn.Module):
    """A user tower that attends to the history."""

    def __init__(self, dim, *, heads=2):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.query = nn.Parameter(torch.randn(1, 1, dim) / dim**0.5)

    def forward(self, history):
        vectors, mask = history.padded()
        query = self.query.expand(vectors.shape[0], 1, -1)
        mask = torch.cat([mask.new_ones(mask.shape[0], 1), mask], dim=1)
        vectors = torch.cat([query, vectors], dim=1)  # something to attend to in any case
        found, _ = self.attention(
            query, vectors, vectors, key_padding_mask=~mask, need_weights=False
        )
        return found


class Bert(nn.Module):
    """An item tower: a Hugging Face encoder over the words of the titles."""

    def __init__(self, inputs, *, column, layers=1):
        from transformers import BertConfig, BertModel

        super().__init__()
        self.words = inputs.item_features[column]
        self.encoder = BertModel(
            BertConfig(
                vocab_size=self.words.num_values,
                hidden_size=16,
                num_hidden_layers=layers,
                num_attention_heads=2,
                intermediate_size=16,
                max_position_embeddings=16,
            ),
            add_pooling_layer=False,
        )
        self.out = nn.Linear(16, inputs.dim)
        self.dim = inputs.dim

    def forward(self, item_ids):
        values, begins = self.words.bags(item_ids)
        ends = torch.cat([begins[1:], begins.new_tensor([len(values)])])
        lengths = (ends - begins).clamp_max(16)
        mask = torch.arange(16) < lengths.unsqueeze(1)
        places = (begins.unsqueeze(1) + torch.arange(16)).clamp_max(max(len(values) - 1, 0))
        words = values[places] * mask
        states = self.encoder(input_ids=words, attention_mask=mask.long()).last_hidden_state
        mean = (states * mask.unsqueeze(-1)).sum(dim=1) / lengths.clamp_min(1).unsqueeze(1)
        return self.out(mean)


class NeedsUsers(Foreign):
    """A model that knows users by their numbers, which a bundle has not."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.people = nn.Embedding(1000, inputs.dim)

    def users(self, history, user_ids=None):
        return super().users(history) + self.people(user_ids).unsqueeze(1)

    def forward(self, history, item_ids, user_ids=None):
        return self.users(history, user_ids)[:, 0], self.items(item_ids)


NotATower = dict
