"""Every path of a product is the same product: few float32 rows, the packed half-precision layout, the library's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.models import linear as linear_module
from specbench.models.linear import Linear, choose_path

SIZES = (24, 40)  # out, in
ROWS = (1, 2, 3, 5, 8, 16, 17, 64, 128, 129, 200)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def packed(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    linear = Linear(weight.clone(), bias)
    linear.prepare("packed")
    assert linear.weight is None  # no second copy stays
    return linear


def unpacked_weight(linear: Linear, columns: int) -> torch.Tensor:
    """The weight [out, in] that a packed layer holds, read through products with unit vectors, in float32."""
    with_float32_result = Linear(torch.empty(0))
    with_float32_result.__dict__ |= linear.__dict__ | {"out_dtype": torch.float32}
    return with_float32_result(torch.eye(columns)).t()


@pytest.fixture(params=[False, True], ids=["avx2", "avx512"])
def with_avx512(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """float32 products as CPUs with and without AVX-512 make them, whatever this one is."""
    monkeypatch.setattr(linear_module, "_has_avx512", lambda: request.param)
    return bool(request.param)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.usefixtures("with_avx512")
def test_float32_rows_equal_the_librarys_product(rows: int, with_bias: bool) -> None:
    weight, x = normal(*SIZES), normal(rows, SIZES[1], seed=1)
    bias = normal(SIZES[0], seed=2) if with_bias else None
    with torch.inference_mode():
        torch.testing.assert_close(Linear(weight, bias)(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


def test_weights_come_first_only_where_that_is_faster(with_avx512: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(linear_module, "_weight_first", lambda x, weight, bias: called.append(1) or x @ weight.t())
    weight, x = normal(*SIZES), normal(3, SIZES[1], seed=1)
    with torch.inference_mode():
        Linear(weight)(x)
    assert bool(called) is not with_avx512


@pytest.mark.parametrize("shape", [(1, 40), (2, 3, 40), (1, 1, 1, 40)])
@pytest.mark.usefixtures("with_avx512")
def test_leading_axes_are_kept(shape: tuple[int, ...]) -> None:
    weight, x = normal(*SIZES), normal(*shape, seed=1)
    for linear in (Linear(weight), packed(weight.bfloat16())):
        assert linear(x).shape == (*shape[:-1], SIZES[0])


@pytest.mark.usefixtures("with_avx512")
def test_rows_do_not_depend_on_their_neighbours() -> None:
    weight, x = normal(*SIZES), normal(7, SIZES[1], seed=1)
    with torch.inference_mode():
        together, alone = Linear(weight)(x), torch.cat([Linear(weight)(row) for row in x.split(1)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3, 8, 40])
@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_product_is_the_float32_product_of_the_same_numbers(
    dtype: torch.dtype, rows: int, with_bias: bool
) -> None:
    weight, x = normal(*SIZES).to(dtype), normal(rows, SIZES[1], seed=1).to(dtype)
    bias = normal(SIZES[0], seed=2).to(dtype) if with_bias else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    linear = packed(weight, bias)
    assert linear(x).dtype == torch.float32
    torch.testing.assert_close(linear(x).double(), expected, rtol=0, atol=2e-5)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(-126, 126), st.integers(0, 26))
def test_bfloat16_weights_survive_packing_exactly(largest: int, spread: int) -> None:
    """Any exponent of the largest weight, and weights up to 2^spread times smaller beside it."""
    exponents = torch.linspace(largest - spread, largest, SIZES[0] * SIZES[1]).round().view(SIZES)
    mantissa = 1.0 + torch.randint(128, SIZES, generator=torch.Generator().manual_seed(0)) / 128
    signs = torch.where(normal(*SIZES) < 0, -1.0, 1.0)
    weight = (signs * mantissa * torch.exp2(exponents.clamp_min(-126))).bfloat16()
    assert torch.equal(weight.float().abs().max().log2().floor(), torch.tensor(float(largest)))
    assert torch.equal(unpacked_weight(packed(weight), SIZES[1]), weight.float())


def test_weights_far_below_the_largest_are_lost_only_below_float32_accuracy() -> None:
    weight = normal(*SIZES).bfloat16()
    weight[0, 0], weight[1, 1] = 2.0**100, 2.0**30
    found = unpacked_weight(packed(weight), SIZES[1])
    assert float((found - weight.float()).abs().max()) <= 2.0**100 * 2.0**-24
    assert float(found[0, 0]) == 2.0**100


def test_float16_weights_survive_packing_exactly() -> None:
    weight = (normal(*SIZES) * torch.logspace(-7, 3, SIZES[1])).half()
    weight[0, 0], weight[0, 1] = 65504.0, 2.0**-24
    assert torch.equal(unpacked_weight(packed(weight), SIZES[1]), weight.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_zero_weights_stay_zero(dtype: torch.dtype) -> None:
    assert not bool(packed(torch.zeros(SIZES, dtype=dtype))(torch.ones(2, SIZES[1])).any())


def test_a_large_weight_is_packed_in_parts_that_join() -> None:
    weight, x = normal(9 * 2**12, 1024).bfloat16(), normal(3, 1024, seed=1)  # above the size of one part
    expected = F.linear(x, weight.float())
    torch.testing.assert_close(packed(weight)(x), expected, rtol=0, atol=2e-3)


def test_logits_leave_the_head_in_float32() -> None:
    weight, x = normal(*SIZES).bfloat16(), normal(2, SIZES[1], seed=1).bfloat16()
    assert Linear(weight, out_dtype=torch.float32)(x).dtype == torch.float32
    assert Linear(weight)(x).dtype == torch.bfloat16


def test_float32_rows_meet_bfloat16_weights() -> None:
    """Ties are settled by recomputing with the stored weights in float32."""
    weight, x = normal(*SIZES).bfloat16(), normal(3, SIZES[1], seed=1)
    with torch.inference_mode():
        found = Linear(weight)(x)
    torch.testing.assert_close(found, F.linear(x, weight.float()), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("with_avx512")
def test_gradients_flow_through_few_rows() -> None:
    weight, x = normal(*SIZES).requires_grad_(), normal(3, SIZES[1], seed=1)
    Linear(weight)(x).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(SIZES))


def test_only_half_precision_on_a_cpu_is_worth_packing() -> None:
    assert choose_path(torch.float32, torch.device("cpu")) == "library"
    assert choose_path(torch.bfloat16, torch.device("cuda")) == "library"
    assert choose_path(torch.bfloat16, torch.device("cpu")) in ("packed", "reordered", "library")
    assert choose_path(torch.float16, torch.device("cpu")) in ("packed", "library")


needs_bfloat16 = pytest.mark.skipif(
    choose_path(torch.bfloat16, torch.device("cpu")) != "reordered", reason="this CPU has no bfloat16 instructions"
)


@needs_bfloat16
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("with_bias", [False, True])
def test_reordered_product_is_the_librarys(rows: int, with_bias: bool) -> None:
    weight, x = normal(*SIZES).bfloat16(), normal(2, rows, SIZES[1], seed=1).bfloat16()
    bias = normal(SIZES[0], seed=2).bfloat16() if with_bias else None
    linear = Linear(weight.clone(), bias)
    linear.prepare("reordered")
    assert linear.weight is None  # no second copy stays
    found = linear(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, F.linear(x, weight, bias), rtol=2**-7, atol=1e-3)
    head = Linear(weight.clone(), bias, out_dtype=torch.float32)
    head.prepare("reordered")
    assert torch.equal(head(x), found.float())


@needs_bfloat16
def test_reordered_weights_come_back_exactly_and_meet_float32_rows() -> None:
    weight, x = normal(*SIZES).bfloat16(), normal(3, SIZES[1], seed=1)
    linear = Linear(weight.clone())
    linear.prepare("reordered")
    linear.prepare("reordered")  # shared by two models
    assert torch.equal(linear.dense(), weight)
    torch.testing.assert_close(linear(x), F.linear(x, weight.float()), rtol=1e-5, atol=1e-5)
