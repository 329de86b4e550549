"""Every operation of `OPS` against its definition in float64, whatever the input looks like.

Values and gradients, compiled and with torch alone; input that is strided, transposed, expanded,
empty, of one row or of another type.
"""

import pytest
import torch

from crossbatch import kernels
from crossbatch.kernels import OPS, parallel, switched_off
from crossbatch.kernels.ragged import real_entries
from crossbatch.kernels.softmax_blocks import Columns
from crossbatch.training.threads import using

SIZES = {"one history": [3], "several": [3, 0, 5, 1], "empty ones": [0, 0], "none": []}


def stops_of(sizes):
    return torch.tensor(sizes, dtype=torch.int64).cumsum(0)


def gru(sizes):
    P, w, h = sum(sizes), 6, 4
    shapes = [(P, w), (w, 3 * h), (h, 2 * h), (h, h), (3 * h,)]
    items, *parameters = (torch.randn(shape) for shape in shapes)
    return [items, stops_of(sizes), *parameters]


def routing(sizes):
    P, w, d, K = sum(sizes), 6, 5, 3
    logits = torch.randn(P, K)
    logits[:, 2:] = -torch.inf if P % 2 else 0.5
    weights = [torch.randn(shape) for shape in ((d, w), (d,), (d, d), (d,))]
    return [torch.randn(P, w), stops_of(sizes), logits, 3, *weights]


def softmax(sizes, *, own=None, push=3.0, exclude=True):
    B, M, d = max(len(sizes), 1), sum(sizes), 5
    ids = torch.randint(1, 7, (B + M,))
    vectors = torch.randn(B, d)
    columns = Columns(
        log_q=torch.randn(B + M),
        own_log_q=torch.randn(B),
        row_keys=ids[:B],
        column_keys=ids,
        exclude=torch.rand(B, B + M) < 0.3 if exclude else None,
        own=own,
        push=(push, 1.0),
    )
    return [columns, torch.randn(B, d), vectors, [vectors, torch.randn(M, d)]]


def weighted_queries(sizes):
    """Rows of several queries: as many as `sizes` says, one where it says none."""
    columns, _, own, vectors = softmax(sizes)
    per_row = torch.tensor([max(size, 1) for size in sizes] or [1])
    P, d = int(per_row.sum()), own.shape[1]
    return [columns, torch.randn(P, d), own, vectors, torch.randn(P), per_row.cumsum(0)]


def lookups(sizes):
    """Two tables, ids of each, and where the bags begin."""
    n = sum(sizes)
    tables = [torch.randn(9, 20), torch.randn(4, 3)]
    ids = [torch.randint(0, 9, (n,)), torch.randint(0, 4, (n,))]
    return [tables, ids, stops_of(sizes) - torch.tensor(sizes, dtype=torch.int64)]


def coarse(sizes, weights):
    """Products of two queries of 20 users, of both signs."""
    tile = torch.randint(-16_129, 16_129, (sum(sizes), 2, 20), dtype=torch.int32)
    return [tile, 1e-3 * torch.rand(sum(sizes)), torch.rand(2, 20), weights]


def attending(sizes, *, queries=False):
    """Two heads of width 3; a third of the weights dropped."""
    seed = torch.tensor([12345, 2**32 - 7])
    if not queries:
        return [torch.randn(sum(sizes), 18), stops_of(sizes), 2, 1 / 3, seed]
    items, asking = torch.randn(sum(sizes), 12), torch.randn(len(sizes), 6)
    return [items, stops_of(sizes), 2, 1 / 3, seed, asking]


NO_GRADIENT = {"coarse_scores", "gather_rows", "mean_rows", "scores_above"}
CASES = {
    "coarse_scores": lambda sizes: coarse(sizes, weights=torch.rand(2, 20)),
    "coarse_scores of the largest": lambda sizes: coarse(sizes, weights=torch.rand(0, 20)),
    "attention": attending,
    "attention of queries": lambda sizes: attending(sizes, queries=True),
    "distinct_ids": lambda sizes: [torch.randint(0, 5000, (sum(sizes),)), 5000],
    "dropout": lambda sizes: [torch.randn(sum(sizes), 6), 0.2, torch.tensor([7, 2**31])],
    "gru_states": gru,
    "history_mean": lambda sizes: [torch.randn(sum(sizes), 6), stops_of(sizes)],
    "gather_rows": lambda sizes: lookups(sizes)[:2],
    "mean_rows": lookups,
    "recency_mean": lambda sizes: [torch.randn(sum(sizes), 6), stops_of(sizes), torch.randn(4)],
    "known_columns": lambda sizes: [
        torch.randint(-1, 9, (sum(sizes),)),
        torch.tensor([0, *stops_of(sizes).tolist()]),
        torch.randint(0, 9, (7,)),
    ],
    "linear": lambda sizes: [torch.randn(sum(sizes), 6), torch.randn(4, 6), torch.randn(4)],
    "routed_interests": routing,
    "sampled_softmax": softmax,
    "sampled_softmax of queries": weighted_queries,
    "scores_above": lambda sizes: [torch.randn(4 * len(sizes), 2, 20), 4, torch.ones(20)],
    "unit_vectors": lambda sizes: [torch.randn(sum(sizes), 6) * torch.tensor([0.0, 1.0]).repeat(3)],
}


def other(x):
    return ~x if x.dtype == torch.bool else x + 1


MAKE_STRIDED = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.t().contiguous().t() if x.dim() == 2 else x,
    "every second": lambda x: torch.stack([x, other(x)], dim=-1).flatten(-2)[..., ::2],
    "every second row": lambda x: torch.stack([x, other(x)], dim=1).flatten(0, 1)[::2],
    "offset": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
}


def each_tensor(arguments, change):
    """The arguments with `change` applied to every tensor in them."""

    def changed(value):
        if isinstance(value, torch.Tensor):
            return change(value)
        if isinstance(value, list):
            return [changed(entry) for entry in value]
        if isinstance(value, Columns):
            fields = {name: getattr(value, name) for name in Columns.__slots__}
            return Columns(**{name: changed(entry) for name, entry in fields.items()})
        return value

    return [changed(argument) for argument in arguments]


def tensors(arguments):
    found = []
    each_tensor(arguments, lambda tensor: found.append(tensor) or tensor)
    return found


def differentiable(name, arguments):
    """The tensors whose gradient the operation gives."""
    floats = [t for t in tensors(arguments) if t.is_floating_point()]
    if name == "routed_interests":  # first logits choose weights and carry no gradient
        return [t for t in floats if t is not arguments[2]]
    if name == "sampled_softmax":
        weights = arguments[4:5]
        vectors = {id(t): t for t in [arguments[2], *arguments[3]]}.values()
        return [arguments[1], *vectors, *weights]
    return floats


def operation_of(case):
    return case.removesuffix(" of queries").removesuffix(" of the largest")


def evaluated(name, function, arguments):
    """Result and gradients of a random weighting of it."""
    leaves = [] if name in NO_GRADIENT else differentiable(name, arguments)
    for leaf in leaves:
        leaf.requires_grad_()
    result = function(*arguments)
    if isinstance(result, tuple):
        return torch.cat([part.double().flatten() for part in result]), []
    if not result.requires_grad:
        return result, []
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result)
    found = torch.autograd.grad((result * weights).sum(), leaves, allow_unused=True)
    return result, [
        torch.zeros_like(a) if g is None else g for a, g in zip(leaves, found, strict=False)
    ]


def check(case, arguments, *, rtol=1e-4, atol=2e-5):
    name = operation_of(case)
    doubled = each_tensor(
        arguments, lambda t: t.detach().double() if t.is_floating_point() else t.clone()
    )
    if name == "sampled_softmax":  # the batch is one tensor in two roles
        doubled[3][0] = doubled[2]
        arguments[3][0] = arguments[2]
    truth, true_gradients = evaluated(name, OPS[name].definition, doubled)
    found, gradients = evaluated(name, OPS[name].run, arguments)
    assert found.shape == truth.shape
    torch.testing.assert_close(found.to(truth.dtype), truth, rtol=rtol, atol=atol)
    assert len(gradients) == len(true_gradients)
    for ours, theirs in zip(gradients, true_gradients, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=rtol, atol=atol)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(params=["compiled", "in parts", "torch alone"])
def mode(request, monkeypatch):
    if request.param == "torch alone":
        with switched_off():
            yield request.param
        return
    if not kernels.available():
        pytest.skip("needs numba")
    if request.param == "in parts":
        monkeypatch.setattr(parallel, "LEAST_NUMBERS", 1)
    with using(3 if request.param == "in parts" else 1):
        yield request.param


def test_every_operation_has_a_case():
    assert {operation_of(case) for case in CASES} == set(OPS)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("name", CASES)
def test_equals_its_definition(name, sizes, mode):
    check(name, CASES[name](sizes))


@pytest.mark.parametrize("name", CASES)
def test_the_same_threads_give_the_same_bits(name, mode):
    def once():
        torch.manual_seed(0)
        run = OPS[operation_of(name)].run
        result, gradients = evaluated(operation_of(name), run, CASES[name]([7, 0, 5, 1, 9]))
        return [result, *gradients]

    assert all(map(torch.equal, once(), once()))


@pytest.mark.parametrize("layout", MAKE_STRIDED)
@pytest.mark.parametrize("name", CASES)
def test_any_memory_layout_will_do(name, layout, mode):
    arguments = each_tensor(CASES[name]([3, 0, 5, 1]), MAKE_STRIDED[layout])
    check(name, arguments)


@pytest.mark.parametrize("name", CASES)
def test_expanded_input_is_read_as_it_stands(name, mode):
    """One row, or one number, in the place of many: strides of zero."""

    def expanded(tensor):
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        return tensor[:1].expand_as(tensor)

    check(name, each_tensor(CASES[name]([3, 0, 5, 1]), expanded))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_other_precisions_take_the_definition(name, dtype, mode):
    arguments = each_tensor(
        CASES[name]([3, 0, 5, 1]), lambda t: t.to(dtype) if t.is_floating_point() else t
    )
    if name == "scores_above" and dtype != torch.float64:
        with pytest.raises(ValueError, match="tile must be"):
            OPS[name].run(*arguments)
        return
    tolerance = 1e-9 if dtype == torch.float64 else 0.1
    check(name, arguments, rtol=tolerance, atol=tolerance)


WRONG = {
    "attention": lambda a: [a[0], a[1].int(), *a[2:]],
    "recency_mean": lambda a: [a[0], a[1].float(), a[2]],
    "distinct_ids": lambda a: [a[0].int(), *a[1:]],
    "gru_states": lambda a: [a[0], a[1].int(), *a[2:]],
    "history_mean": lambda a: [a[0], a[1].float()],
    "known_columns": lambda a: [a[0].float(), *a[1:]],
    "routed_interests": lambda a: [a[0], a[1][:, None], *a[2:]],
}


@pytest.mark.parametrize("name", WRONG)
def test_ids_of_another_type_are_refused(name, mode):
    with pytest.raises(ValueError, match="must be one row of int64"):
        OPS[name].run(*WRONG[name](CASES[name]([3, 0, 5, 1])))


@pytest.mark.parametrize("stops", [[3, 2, 8, 9], [-1, 3, 8, 9], [3, 3, 8, 10], [3, 3, 8, 8], [9]])
@pytest.mark.parametrize(
    "name", ["attention", "gru_states", "history_mean", "recency_mean", "routed_interests"]
)
def test_stops_that_do_not_cut_the_items_are_refused(name, stops, mode):
    arguments = CASES[name]([3, 0, 5, 1])
    arguments[1] = torch.tensor(stops)
    if stops == [9]:  # one history of all
        check(name, arguments)
        return
    with pytest.raises(ValueError, match="stops must rise from 0 and end at"):
        OPS[name].run(*arguments)


def test_sums_that_are_not_above_a_floor_may_be_zero(mode):
    arguments = coarse([40], weights=torch.rand(2, 20))
    truth = OPS["coarse_scores"].definition(*arguments)
    rare = truth.amax(dim=0).index_fill(0, torch.tensor([1]), torch.inf)
    rare[0] = truth[:, 0].median()
    usual = torch.linspace(-1.0, 1.0, 20)
    for floor in (rare, usual, torch.zeros(20)):
        found = OPS["coarse_scores"].run(*arguments, floor)
        wanted = truth > floor
        torch.testing.assert_close(found[wanted], truth[wanted], rtol=1e-5, atol=1e-30)
        assert (found <= truth * (1 + 1e-5)).all()


@pytest.mark.parametrize("offsets", [[0, 3, 2], [-1, 3, 9], [0, 3, 10**9]])
def test_offsets_out_of_range_are_refused(offsets, mode):
    with pytest.raises(ValueError, match="offsets must rise from 0 or more"):
        OPS["known_columns"].run(torch.arange(9), torch.tensor(offsets), torch.arange(4))


@pytest.mark.parametrize("block_rows", [1, 3, 100])
@pytest.mark.parametrize("own", [0, None])
def test_softmax_of_queries_in_blocks_of_rows(own, block_rows, mode):
    columns, queries, vectors, groups, log_weights, stops = weighted_queries([3, 1, 5, 2])
    fields = {name: getattr(columns, name) for name in Columns.__slots__} | {"own": own}
    if own is not None:  # the positives are among the columns as they stand
        fields["push"] = (1.0, 1.0)
    arguments = [Columns(**fields), queries, vectors, groups, log_weights, stops]
    leaves = [queries, vectors, groups[1], log_weights]
    for leaf in leaves:
        leaf.requires_grad_()
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    u, v, bank, weights = doubles
    truth = (
        OPS["sampled_softmax"].definition(Columns(**fields), u, v, [v, bank], weights, stops).mean()
    )
    run = OPS["sampled_softmax"].run(*arguments, mean=True, block_rows=block_rows)
    torch.testing.assert_close(run.double(), truth, rtol=1e-5, atol=1e-6)
    ours, theirs = torch.autograd.grad(run, leaves), torch.autograd.grad(truth, doubles)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stops", [[2, 1, 5, 9], [3, 3, 8, 11], [3, 4, 9, 12], [3, 4, 9]])
def test_queries_that_do_not_belong_to_rows_are_refused(stops, mode):
    arguments = weighted_queries([3, 1, 5, 2])
    arguments[5] = torch.tensor(stops)
    with pytest.raises(ValueError, match=r"stops must|row_keys and own_log_q must have shape"):
        OPS["sampled_softmax"].run(*arguments)


@pytest.mark.parametrize("own", [0, 2, None])
@pytest.mark.parametrize("block_rows", [1, 3, 100])
@pytest.mark.parametrize("mean", [False, True])
def test_softmax_in_blocks_of_rows(own, block_rows, mean, mode):
    B, d = 5, 4
    u, v = torch.randn(B, d, requires_grad=True), torch.randn(B, d, requires_grad=True)
    extra, ids = torch.randn(own or 0, d), torch.arange(B + (own or 0))
    columns = Columns(torch.zeros(len(ids)), torch.zeros(B), ids[own or 0 :], ids, None, own)
    columns = Columns(*(getattr(columns, n) for n in Columns.__slots__[:-1]), push=(1.0, 1.0))
    run = OPS["sampled_softmax"].run(columns, u, v, [extra, v], mean=mean, block_rows=block_rows)
    truth = OPS["sampled_softmax"].definition(
        columns, u.double(), v.double(), [extra.double(), v.double()]
    )
    truth = truth.mean() if mean else truth
    torch.testing.assert_close(run.double(), truth, rtol=1e-5, atol=1e-6)
    weights = torch.rand(run.shape)
    ours = torch.autograd.grad((run * weights).sum(), (u, v))
    theirs = torch.autograd.grad((truth * weights).sum(), (u, v))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["attention", "gru_states", "history_mean", "recency_mean", "routed_interests", "unit_vectors"],
)
def test_second_derivatives_are_refused_rather_than_wrong(name):
    if not kernels.available():
        pytest.skip("needs numba")
    arguments = CASES[name]([3, 2])
    arguments[0].requires_grad_()
    result = OPS[name].run(*arguments)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(result.sum(), arguments[0], create_graph=True)


@pytest.mark.parametrize("bad", [-1, 9, 10**12])
@pytest.mark.parametrize("name", ["gather_rows", "mean_rows"])
def test_ids_that_are_no_rows_are_refused(name, bad, mode):
    arguments = CASES[name]([3, 0, 5, 1])
    arguments[1][0][4] = bad
    with pytest.raises((IndexError, RuntimeError)):
        OPS[name].run(*arguments)


def test_real_entries(mode):
    padded = torch.tensor([[3, 0, 5], [0, 0, 0], [1, 2, 0]]).t().contiguous().t()
    items, stops = real_entries(padded)
    assert (items.tolist(), stops.tolist()) == ([3, 5, 1, 2], [2, 2, 4])
