"""An attention backend whose kernel no compiler takes.

Never imported by name: whoever collects the tests without a GPU must not have imported Triton yet
(see tests/workers/kernels/conftest.py).
"""

import torch
import triton
import triton.language as tl

from workers.attention.backends.triton import PagedPlan, TritonBackend
from workers.attention.base import QKV, LayerCache


class BrokenBackend(TritonBackend):
    label = "broken_backend"

    def attend_paged(
        self,
        qkv: QKV,
        cache: LayerCache,
        plan: PagedPlan,
        out: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        _does_not_compile[(1,)](qkv.queries)
        return qkv.queries


@triton.jit
def _does_not_compile(queries):
    tl.static_assert(False, "made not to compile")
    tl.store(queries, 0)
