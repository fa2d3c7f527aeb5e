"""Keys and values in FP8: numbers in E4M3, and a power of two as the scale of each token's heads.

The scale is made at write, from the largest of a head's numbers. Formats of floating-point numbers
lose nothing by a power of two, so that no scale of a checkpoint, of a whole tensor, is more exact.
"""

import torch

FP8 = torch.float8_e4m3fn


def quantized(heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`heads` [T, H, D] in E4M3, and their scales float32[T, H].

    Scales are the least powers of two of which 448, the largest number of E4M3, is not less than a
    head's largest.
    """
    wide = heads.float()
    # 448 is 1.75 * 2 ** 8: larger mantissas carry.
    carried = (wide.abs().amax(2).view(torch.int32) + 0x1FFFFF) >> 23
    scales = ((carried - 8).clamp_(min=1) << 23).view(torch.float32)
    return (wide / scales[..., None]).to(FP8), scales


def dequantized(numbers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers [..., D] times the scales [...] of their heads."""
    return (numbers.float() * scales[..., None]).to(dtype)


def packed(key_scales: torch.Tensor, value_scales: torch.Tensor) -> torch.Tensor:
    """Both scales in one int32: powers of two have 16 bits, those of the keys are the lower."""
    return (key_scales.view(torch.int32) >> 16) | value_scales.view(torch.int32)


def unpacked(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales of keys and of values, float32."""
    return (scales << 16).view(torch.float32), (scales & -0x10000).view(torch.float32)
