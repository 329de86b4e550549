import torch

from crossbatch.models.normalize import unit_vectors


def test_unit_vectors():
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-6, 0.0]], requires_grad=True)
    unit = unit_vectors(vectors)
    torch.testing.assert_close(unit, torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]]))
    (unit * torch.tensor([1.0, 2.0])).sum().backward()
    assert vectors.grad[1].tolist() == [0.0, 0.0]
    # (g - (g·e) e) / |x| with g = (1, 2), e = (0.6, 0.8), |x| = 5
    torch.testing.assert_close(vectors.grad[0], torch.tensor([-0.064, 0.048]))


def test_unit_vectors_of_half_precision_are_exact_to_float():
    unit = unit_vectors(torch.randn(10, 64).bfloat16())
    assert unit.dtype == torch.float32
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(10))
