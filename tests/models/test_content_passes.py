"""Content on the way back without a graph, against autograd over the same tower."""

import pytest
import torch

from crossbatch import kernels
from crossbatch.models import EmbeddingTable, FeatureTable, ItemTower, TwoTower, YouTubeDNN
from crossbatch.models.features import MultiValuedEncoder
from crossbatch.models.passes import GraphPass, ItemsPass, UsersPass, items_pass, users_pass
from crossbatch.training import Adam

if not kernels.available():
    pytest.skip("needs numba", allow_module_level=True)

ITEMS = 30


def features():
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(0, 5, (ITEMS + 1,), generator=generator)
    sizes[2] = 0  # an item without a single tag
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    tags = torch.randint(0, 7, (int(offsets[-1]),), generator=generator, dtype=torch.int32)
    kinds = torch.randint(0, 4, (ITEMS + 1,), generator=generator, dtype=torch.int16)
    numbers = torch.randn(ITEMS + 1, 3, generator=generator, dtype=torch.float64)
    return {
        "kind": FeatureTable("categorical", kinds, num_values=4),
        "numbers": FeatureTable("numeric", numbers),
        "tags": FeatureTable("multi_valued", tags, offsets, num_values=7),
        "text": FeatureTable("dense", numbers.half()),
        "zone": FeatureTable("categorical", kinds.flip(0), num_values=4),
    }


def model_of(names, **options):
    torch.manual_seed(0)
    content = {name: table for name, table in features().items() if name in names}
    tower = ItemTower(ITEMS, 8, features=content, **options)
    return TwoTower(tower, YouTubeDNN(8), history="id" if tower.table else "item_tower")


def gradients_of(model):
    """Every gradient by name; tables' by way of their keepers, where they have any."""
    found = {name: p.grad for name, p in model.item_tower.named_parameters() if p.grad is not None}
    for name, part in model.item_tower.named_modules():
        if not isinstance(part, EmbeddingTable):
            continue
        total = torch.zeros_like(part.weight)
        for read in part.keeper.reads if part.keeper else ():
            bags = torch.arange(len(read.ids)) if isinstance(read.bags, int) else read.bags
            total.index_add_(0, read.ids, read.gradient[bags])
        found[f"{name}.weight"] = total if part.keeper else part.weight.grad.to_dense()
    return found


@pytest.mark.parametrize("has_id", [True, False], ids=["id", "content alone"])
@pytest.mark.parametrize("hidden", [(), (6,)], ids=["linear", "hidden"])
@pytest.mark.parametrize(
    "names",
    [["tags"], ["numbers"], ["text"], ["kind", "tags", "zone"], [*features()]],
    ids="-".join,
)
@pytest.mark.parametrize("dims", [{}, {"numbers": 5}], ids=["own width", "chosen width"])
def test_content_has_the_vectors_and_gradients_of_autograd(names, hidden, has_id, dims):
    dims = {name: width for name, width in dims.items() if name in names}
    options = {"hidden": hidden, "id": has_id, "feature_dims": dims}
    ours, plain = model_of(names, **options), model_of(names, **options)
    Adam(ours)  # keeps the tables by rows
    encode = items_pass(ours)
    assert isinstance(encode, ItemsPass)
    batches = torch.tensor([5, 2, 5, 30, 1]), torch.tensor([2, 2, 7])  # two reads in one step
    pulls = [torch.randn(len(ids), 8) for ids in batches]
    results = [encode(ids) for ids in batches]
    for (vectors, backward), ids, pull in zip(results, batches, pulls, strict=True):
        expected = plain.items(ids)
        torch.testing.assert_close(vectors, expected, rtol=1e-5, atol=1e-6)
        (expected * pull).sum().backward()
        backward(pull.numpy().copy())
    found, expected = gradients_of(ours), gradients_of(plain)
    assert set(found) == set(expected)
    for name, truth in expected.items():
        torch.testing.assert_close(found[name], truth, rtol=1e-4, atol=1e-6, msg=name)


def test_unknown_users_have_no_profile():
    torch.manual_seed(0)
    users = {"zone": FeatureTable("categorical", torch.tensor([0, 1, 2]), num_values=3)}
    models = [
        TwoTower(ItemTower(ITEMS, 8), YouTubeDNN(8), user_features=users, normalize=True)
        for _ in range(2)
    ]
    models[1].load_state_dict(models[0].state_dict())
    Adam(models[0])
    encode = users_pass(models[0])
    assert isinstance(encode, UsersPass)
    history, user_ids = torch.tensor([[3, 4], [5, 0], [6, 7]]), torch.tensor([2, -1, 0])
    pull = torch.randn(3, 8)
    vectors, backward = encode(None, history, user_ids)
    expected = models[1].users(history, user_ids).squeeze(1)
    torch.testing.assert_close(vectors, expected)
    (expected * pull).sum().backward()
    backward(pull.numpy().copy())
    ours, plain = (model.profile.encoders[0].embedding for model in models)
    (read,) = ours.keeper.reads
    found = torch.zeros_like(ours.weight).index_add_(0, read.ids, read.gradient)
    torch.testing.assert_close(found, plain.weight.grad.to_dense(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("part", ["item_tower", "item_tower.content.encoders.0"])
@pytest.mark.parametrize("how", ["hook", "forward"])
def test_who_listens_in_is_heard(part, how):
    model = model_of(["tags"])
    Adam(model)
    heard, module = [], model.get_submodule(part)
    if how == "hook":
        module.register_forward_hook(lambda *_: heard.append(1))
    else:
        own = module.forward
        module.forward = lambda ids: heard.append(1) or own(ids)
    items_pass(model)(torch.tensor([1, 2]))
    assert heard == [1]


def test_a_tower_derived_from_ours_keeps_what_it_does():
    class Doubled(ItemTower):
        def forward(self, ids):
            return 2 * super().forward(ids)

    model = TwoTower(Doubled(ITEMS, 8), YouTubeDNN(8))
    Adam(model)
    ids = torch.tensor([1, 2])
    vectors, _ = items_pass(model)(ids)
    torch.testing.assert_close(vectors, 2 * model.item_tower.table.weight[ids].detach())


def test_an_encoder_of_somebody_else_goes_through_autograd():
    class Doubled(MultiValuedEncoder):
        def forward(self, ids):
            return 2 * super().forward(ids)

    model = model_of(["tags"])
    model.item_tower.content.encoders[0] = Doubled(features()["tags"], None)
    Adam(model)
    assert isinstance(items_pass(model), GraphPass)
