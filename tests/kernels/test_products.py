"""Products by oneDNN: against float64, for shapes that it takes, takes in part, or not at all."""

import pytest
import torch

from crossbatch import kernels
from crossbatch.kernels import products
from crossbatch.kernels.sampled_softmax import definition, sampled_softmax
from crossbatch.kernels.softmax_blocks import Columns

try:
    products._onednn(torch.eye(16), torch.eye(16))
except (AttributeError, RuntimeError):
    pytest.skip("needs a torch with oneDNN", allow_module_level=True)


HAS_FASTER_LIBRARY = products.has_faster_library.__wrapped__


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Whatever the size, and whatever processor the tests run on."""
    torch.manual_seed(0)
    monkeypatch.setattr(products, "FEWEST_MULTIPLICATIONS", 0)
    monkeypatch.setattr(products, "has_faster_library", lambda: True)


CPUINFO = "vendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: avx2 {flags} sha\n"


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "expected"),
    [
        ("AuthenticAMD", 26, "avx512f", True),  # Zen 5
        ("AuthenticAMD", 25, "avx512f", False),  # Zen 4, in two halves
        ("AuthenticAMD", 23, "", False),
        ("AuthenticAMD", 26, "", False),
        ("GenuineIntel", 6, "avx512f", False),
    ],
)
def test_processors_with_a_faster_library(tmp_path, monkeypatch, vendor, family, flags, expected):
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO.format(vendor=vendor, family=family, flags=flags))
    monkeypatch.setattr(products, "PROCESSOR", file)
    assert HAS_FASTER_LIBRARY() is expected
    file.unlink()
    assert HAS_FASTER_LIBRARY() is False


def assert_near(found, truth):
    torch.testing.assert_close(found.double(), truth, rtol=1e-4, atol=1e-4)


LAYOUTS = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "rows with gaps": lambda x: torch.cat([x, x], dim=1)[:, : x.shape[1]],
    "columns with gaps": lambda x: torch.cat([x, x]).t()[:, : len(x)].t(),
    "every second": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "one row": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("m", [0, 1, 16, 40, 128])
@pytest.mark.parametrize("k", [1, 32, 50])
@pytest.mark.parametrize("n", [3, 48, 70])
def test_product_of_any_shape(m, k, n):
    a, b = torch.randn(m, k), torch.randn(k, n)
    assert_near(products.multiply(a, b), a.double() @ b.double())


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("k", [32, 50])
def test_product_of_any_memory_layout(left, right, k):
    a, b = LAYOUTS[left](torch.randn(40, k)), LAYOUTS[right](torch.randn(k, 48))
    assert_near(products.multiply(a, b), a.double() @ b.double())


@pytest.mark.parametrize("k", [100, 128, 1024, 2100])
@pytest.mark.parametrize(("m", "n"), [(32, 48), (48, 32), (32, 40)])
@pytest.mark.parametrize("width", [48, 60])
def test_transposed_product_in_pieces(k, m, n, width):
    a, b = torch.randn(k, width)[:, :m].t(), torch.randn(k, n)
    assert_near(products.multiply(a, b), a.double() @ b.double())
    bias = torch.randn(n)
    assert_near(products.multiply(a, b, bias), a.double() @ b.double() + bias.double())


@pytest.mark.parametrize("shape", [(70, 40), (2, 35, 40), (0, 40)])
@pytest.mark.parametrize("layout", ["contiguous", "every second"])
def test_linear_layer_and_its_gradients(shape, layout):
    x, weight, bias = torch.randn(shape), torch.randn(48, 40), torch.randn(48)
    if layout == "every second":
        x = x.repeat_interleave(2, dim=-1)[..., ::2]
    found, truth = [], []
    for results, dtype in ((found, torch.float32), (truth, torch.float64)):
        leaves = [each.detach().to(dtype).requires_grad_() for each in (x, weight, bias)]
        run = products.linear if dtype == torch.float32 else torch.nn.functional.linear
        y = run(*leaves)
        results += [y, *torch.autograd.grad((y * y).sum(), leaves)]
    for ours, theirs in zip(found, truth, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-3)


def test_only_the_gradients_that_are_needed():
    x, weight, bias = torch.randn(32, 16), torch.randn(16, 16), torch.randn(16)
    weight.requires_grad_()
    products.linear(x, weight, bias).sum().backward()
    assert_near(weight.grad, torch.ones(32, 16).double().T @ x.double())


def test_second_derivative():
    x = torch.randn(32, 16, requires_grad=True)
    weight = torch.randn(16, 16, requires_grad=True)
    y = products.linear(x, weight, torch.zeros(16))
    (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), weight)
    xd, wd = (each.detach().double().requires_grad_() for each in (x, weight))
    (first,) = torch.autograd.grad((xd @ wd.T).pow(3).sum(), xd, create_graph=True)
    (truth,) = torch.autograd.grad(first.sum(), wd)
    torch.testing.assert_close(second.double(), truth, rtol=1e-3, atol=1e-2)


def test_autocast_and_other_types_take_the_definition():
    x, weight, bias = torch.randn(32, 16), torch.randn(16, 16), torch.randn(16)
    assert not products.worth_it(32, 16, 16, x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.linear(x, weight, bias).dtype == torch.bfloat16


@pytest.mark.skipif(not kernels.available(), reason="needs numba")
@pytest.mark.parametrize("cached", [0, 37])
@pytest.mark.parametrize("own", [0, None])
@pytest.mark.parametrize("block_rows", [None, 32])
@pytest.mark.parametrize("queries", [1, 3])
def test_softmax_with_products_outside_of_compiled_code(cached, own, block_rows, queries):
    B, d = 70, 24
    ids = torch.randint(1, 40, (B + cached,))
    columns = Columns(
        torch.randn(B + cached),
        torch.randn(B),
        ids[:B],
        ids,
        torch.rand(B, B + cached) < 0.2,
        own,
        (1.0, 1.0) if cached else (1.0,),
    )
    users, items, bank = torch.randn(B * queries, d), torch.randn(B, d), torch.randn(cached, d)
    weights = torch.randn(B * queries) if queries > 1 else None
    stops = torch.arange(queries, B * queries + 1, queries) if queries > 1 else None
    found, truth = [], []
    for results, dtype in ((found, torch.float32), (truth, torch.float64)):
        u, v = (each.to(dtype).requires_grad_() for each in (users, items))
        parts = [v, bank.to(dtype)] if cached else [v]
        a = None if weights is None else weights.to(dtype)
        if dtype == torch.float32:
            losses = sampled_softmax(columns, u, v, parts, a, stops, block_rows=block_rows)
        else:
            losses = definition(columns, u, v, parts, a, stops)
        factors = torch.linspace(0.5, 2, B).to(dtype)
        results += [losses, *torch.autograd.grad((losses * factors).sum(), (u, v))]
    for ours, theirs in zip(found, truth, strict=True):
        assert_near(ours, theirs)
