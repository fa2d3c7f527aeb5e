"""Workloads of prompts that share prefixes, beside `b16`, `b16s` and `b400`."""

from server.bench.cases.workloads import EncodeCase, GenerationCase, OfflineCase
from workers.contract.token_sampling import TokenSampling

_PROMPTS = 6400

DEGREES = tuple(
    GenerationCase(
        name=f"degree-{members}",
        count=_PROMPTS // members,
        members=members,
        prefix=2000,
        own=200,
        outputs=100,
        shuffled=True,
    )
    for members in (1, 2, 4, 8, 16, 32, 64, 128, 400)
)
"""`b16` with groups of other sizes. In `degree-1` no two prompts share anything."""

SHARING: tuple[OfflineCase, ...] = (
    # BatchLLM (arXiv:2412.03594; vLLM RFC 12080 has its script) samples so, and lets outputs end by
    # themselves. How long those are is not published: here their lengths are exponential.
    GenerationCase(
        name="batchllm",
        count=400,
        members=16,
        prefix=2000,
        own=200,
        outputs=100,
        most_outputs=400,
        sampling=TokenSampling(temperature=0.01, top_p=0.1),
        shuffled=True,
    ),
    GenerationCase(name="prefix16k", count=1, members=16, prefix=16_000, own=200, outputs=100),
    GenerationCase(
        name="nested",
        count=8,
        prefix=1000,
        documents=8,
        document=1000,
        members=8,
        own=64,
        most_own=200,
        outputs=100,
        shuffled=True,
    ),
    # A query with its template before each of its documents.
    EncodeCase(
        name="rerank100",
        shape="qwen3-reranker-0.6b",
        count=80,
        members=100,
        prefix=200,
        prompt_tokens=500,
    ),
)
