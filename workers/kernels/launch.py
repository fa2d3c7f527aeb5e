"""The number by which launches are sized. To import it needs no Triton."""

from functools import lru_cache
from typing import Any, cast

import torch


@lru_cache
def processors(device: torch.device) -> int:
    """Number of streaming multiprocessors. The CPU, for Triton's interpreter, has two, so that
    launches sized by this number have several programs."""
    if device.type == "cpu":
        return 2
    # torch leaves this function's types open.
    properties = cast("Any", torch.cuda.get_device_properties(device))  # pyright: ignore[reportUnknownMemberType]
    return int(properties.multi_processor_count)
