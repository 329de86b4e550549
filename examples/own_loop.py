"""Cross-batch negatives in a plain PyTorch loop: `python examples/own_loop.py`.

Towers, data and loop are plain PyTorch; only the loss is from crossbatch, and needs torch alone.
In the simulated data each user clicks items of one of 20 groups, popular items more often; an item
is described by its group and an id. The loop runs with in-batch negatives and with a bank, and
prints the share of users whose next item is among their top 20 of 2,000.
"""

import argparse

import torch
from torch import Tensor, nn

from crossbatch.negatives import CrossBatchSoftmax

USERS, ITEMS, GROUPS, DIM = 4000, 2000, 20, 32


def clicks(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw user ids and item ids, both [rows]; item i belongs to group i mod 20."""
    users = torch.randint(USERS, (rows,), generator=generator)
    rank = (torch.rand(rows, generator=generator) ** 3 * (ITEMS // GROUPS)).long()  # skewed
    return users, rank * GROUPS + users % GROUPS


class Towers(nn.Module):
    """Two towers: users have an id embedding, items one for the id and one for the group."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item, self.group = nn.Embedding(ITEMS, DIM), nn.Embedding(GROUPS, DIM)
        self.register_buffer("groups", torch.arange(ITEMS) % GROUPS)

    def users(self, ids: Tensor) -> Tensor:
        """Vectors [B, d] of users [B]."""
        return nn.functional.normalize(self.user(ids), dim=1)

    def items(self, ids: Tensor) -> Tensor:
        """Vectors [B, d] of items [B]."""
        return nn.functional.normalize(self.item(ids) + self.group(self.groups[ids]), dim=1)


def train(capacity: int, steps: int) -> tuple[float, dict[str, float]]:
    """Train with a bank of `capacity` rows; returns the hit rate@20 and the diagnostics."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    counts = clicks(100_000, generator)[1].bincount(minlength=ITEMS)
    towers = Towers()
    optimizer = torch.optim.Adam(towers.parameters(), lr=0.01)
    loss_fn = CrossBatchSoftmax(
        DIM, capacity, warmup_steps=50, item_counts=counts + 1, temperature=0.1
    )
    for _ in range(steps):
        users, items = clicks(64, generator)
        loss = loss_fn(towers.users(users), towers.items(items), items)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    users, items = clicks(2000, generator)
    with torch.no_grad():
        best = (towers.users(users) @ towers.items(torch.arange(ITEMS)).T).topk(20, dim=1).indices
    return float((best == items[:, None]).any(dim=1).float().mean()), loss_fn.stats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    steps = parser.parse_args().steps
    for capacity in (0, 1024):
        hit_rate, stats = train(capacity, steps)
        print(f"bank of {capacity:>4}: hit rate@20 {hit_rate:.3f}", end="   ")
        print(
            f"negatives per row {stats['negatives_per_row']:.0f}, hardness {stats['hardness']:.2f}"
        )


if __name__ == "__main__":
    main()
