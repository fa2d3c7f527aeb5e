"""Rows quantised to FP8, after what is fused with that, against torch."""

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.cases import drawn
from workers.kernels.linear.quantized_rows import GROUP, QuantizedRows, quantize
from workers.kernels.linear.rowwise import rms_norm

E4M3 = torch.float8_e4m3fn
EPS = 1e-5


def check(got: QuantizedRows, wide: torch.Tensor, *, grouped: bool = False) -> None:
    """That `got` are the rows `wide`, in float32, with the scales that it has."""
    scales = got.scales
    assert scales.dtype == torch.float32
    if grouped:
        assert got.padded().scales.t().is_contiguous()
        scales = scales.repeat_interleave(GROUP, 1)[:, : wide.shape[1]]
    want = (wide / scales).clamp(-448, 448)
    assert got.values.dtype == E4M3
    error = (got.values.float() - want).abs()
    if wide.is_cuda:
        # Dividing may differ in the last bit, and so where halves are rounded to.
        assert (error <= want.abs() / 16 + 2**-10).all()
        assert (got.values.float() == want.to(E4M3).float()).float().mean() > 0.999
    else:
        # The interpreter forgets to carry where rounding ends at a power of two, and cuts smalls.
        power = want.to(E4M3).float().abs().frexp().mantissa == 0.5
        assert (error[~power] <= want[~power].abs() / 16 + 2**-9).all()


def scales_of(wide: torch.Tensor, *, grouped: bool = False) -> torch.Tensor:
    if grouped:
        wide = F.pad(wide, (0, -wide.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    return wide.abs().amax(dim=-1).view(len(wide), -1) / 448


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("count", "size"), [(1, 64), (17, 200), (64, 256)])
def test_scales_of_rows_and_groups(
    device: torch.device, dtype: torch.dtype, count: int, size: int, grouped: bool
) -> None:
    rows = drawn(count, size + 8, dtype=dtype, device=device)[:, :size]
    rows *= torch.arange(1, count + 1, device=device)[:, None]
    got = quantize(rows, grouped=grouped)
    torch.testing.assert_close(got.scales, scales_of(rows.float(), grouped=grouped))
    check(got, rows.float(), grouped=grouped)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_norm_before_rounds_as_its_own_kernel_does(
    device: torch.device, dtype: torch.dtype, grouped: bool
) -> None:
    rows = drawn(5, 272, dtype=dtype, device=device)
    norm = drawn(272, dtype=dtype, device=device), EPS
    normed, got = rms_norm(rows, *norm), quantize(rows, norm=norm, grouped=grouped)
    want = quantize(normed, grouped=grouped)
    torch.testing.assert_close(got.scales, want.scales, rtol=2**-7, atol=0)
    check(got, normed.float(), grouped=grouped)


def test_a_static_scale_saturates(device: torch.device) -> None:
    rows = drawn(4, 64, dtype=torch.bfloat16, device=device)
    rows[1, :2] = torch.tensor([1e6, -1e6])
    scale = torch.tensor(1 / 64, device=device)
    got = quantize(rows, scale=scale)
    assert got.scales.flatten().tolist() == [1 / 64] * 4
    check(got, rows.float())
    assert got.values[1, :2].float().tolist() == [448, -448]


def test_a_bound_limits_a_scale(device: torch.device) -> None:
    rows = drawn(3, 64, dtype=torch.bfloat16, device=device).clamp(-2, 2)
    rows[1, 5] = 100
    got = quantize(rows, most_amax=7.0)
    assert got.scales[1].item() == pytest.approx(7 / 448)
    assert got.values[1, 5].item() == 448
    check(got, rows.float())


def test_zeros_stay_zeros(device: torch.device) -> None:
    got = quantize(torch.zeros(2, 64, dtype=torch.bfloat16, device=device))
    assert (got.scales > 0).all()
    assert (got.values.float() == 0).all()


@pytest.mark.skipif("not torch.cuda.is_available()", reason="the interpreter has no NaN in FP8")
def test_nan_stays_nan(device: torch.device) -> None:
    rows = drawn(3, 64, dtype=torch.bfloat16, device=device)
    rows[1, 7] = torch.nan
    for got in (quantize(rows), quantize(rows, scale=torch.tensor(1.0, device=device))):
        assert got.values.float().isnan().nonzero().tolist() == [[1, 7]]
