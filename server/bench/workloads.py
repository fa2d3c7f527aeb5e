"""The headline workloads, and what is reached on them on NVIDIA H200 GPUs in bf16.

The figures of vLLM 0.25.1 (its defaults) and the floors were measured on 2026-11-21. Floor of
generation: the linear layers through cuBLAS in one CUDA graph, plus attention or KV reads, nothing
else; of encoders: a bare compiled one with FlashAttention 2.
"""

from server.bench.cases import (
    EncodeCase,
    GenerationCase,
    HTTPCase,
    HTTPEmbeddingCase,
    HTTPGenerationCase,
    Target,
)

Values = tuple[float, ...]


def _tokens(goal: Values, vllm: Values, floor: Values) -> tuple[Target]:
    figure = "output_tokens_per_s"
    return (Target(figure=figure, unit="tok/s", goal=goal, vllm=vllm, floor=floor),)


def _requests(goal: Values, vllm: Values, floor: Values = ()) -> tuple[Target]:
    figure = "requests_per_s"
    return (Target(figure=figure, unit="req/s", goal=goal, vllm=vllm, floor=floor),)


def _sequences(goal: float, vllm: float, *floor: float) -> tuple[Target]:
    figure = "sequences_per_s"
    return (Target(figure=figure, unit="seq/s", goal=(goal,), vllm=(vllm,), floor=floor),)


def _at_most(figure: str, unit: str, goal: Values, vllm: Values, floor: Values = ()) -> Target:
    return Target(figure=figure, unit=unit, goal=goal, vllm=vllm, floor=floor, at_least=False)


GENERATION = (
    GenerationCase(
        name="one", count=1, own=128, outputs=256, targets=_tokens((235,), (197, 204, 157), (249,))
    ),
    GenerationCase(
        name="dec",
        count=256,
        own=128,
        outputs=512,
        targets=_tokens(
            (23_500, 36_000, 42_000), (18_690, 27_275, 22_792), (25_200, 41_000, 50_000)
        ),
    ),
    GenerationCase(
        name="rand",
        count=2048,
        own=512,
        outputs=256,
        targets=_requests((45, 88, 165), (40.9, 75.2, 125.4), (46,)),
    ),
    GenerationCase(
        name="b16",
        count=400,
        members=16,
        prefix=2000,
        own=200,
        outputs=100,
        shuffled=True,
        targets=_requests((80,), (39.2,), (93,)),
    ),
    GenerationCase(
        name="b16s",
        count=400,
        members=16,
        prefix=2000,
        own=200,
        outputs=100,
        targets=_requests((80, 154, 290), (61.7, 117.8, 193.6), (93,)),
    ),
    GenerationCase(
        name="b400",
        count=16,
        members=400,
        prefix=2000,
        own=200,
        outputs=100,
        shuffled=True,
        targets=_requests((112,), (69.1,), (133,)),
    ),
    GenerationCase(
        name="long32k",
        count=1,
        own=32_000,
        outputs=1,
        targets=(
            _at_most(
                "seconds",
                "s",
                (1.10, 0.62, 0.36),
                (1.157, 0.893, 0.766),
                (1.09, 1.09 / 1.88, 1.09 / 3.37),
            ),
        ),
    ),
)

PREFILL = (
    EncodeCase(
        name="emb512",
        shape="bge-base",
        count=8192,
        prompt_tokens=512,
        targets=_sequences(4800, 2128, 4720),
    ),
    EncodeCase(
        name="emb128",
        shape="bge-base",
        count=16_384,
        prompt_tokens=128,
        targets=_sequences(20_000, 5002, 21_000),
    ),
    EncodeCase(
        name="emb32",
        shape="bge-base",
        count=16_384,
        prompt_tokens=32,
        targets=_sequences(60_000, 5620, 72_000),
    ),
    EncodeCase(
        name="rer512",
        shape="xlmr-large",
        count=8192,
        prompt_tokens=512,
        targets=_sequences(1450, 1140, 1450),
    ),
    EncodeCase(
        name="rer128",
        shape="xlmr-large",
        count=16_384,
        prompt_tokens=128,
        targets=_sequences(5800, 3601, 5870),
    ),
    EncodeCase(
        name="rer32",
        shape="xlmr-large",
        count=16_384,
        prompt_tokens=32,
        targets=_sequences(20_000, 7643, 20_900),
    ),
)

HTTP: tuple[HTTPCase, ...] = (
    HTTPGenerationCase(
        name="http-gen-burst",
        count=512,
        prompt_tokens=512,
        outputs=128,
        targets=_requests((60,), (52.4,)),
    ),
    HTTPGenerationCase(
        name="http-gen-16",
        count=512,
        prompt_tokens=512,
        outputs=128,
        rate=16,
        targets=(
            _at_most("ttft_p50_ms", "ms", (18,), (20.4,)),
            _at_most("ttft_p99_ms", "ms", (24,), (26.3,)),
            _at_most("tpot_mean_ms", "ms", (4.6,), (5.10,)),
        ),
    ),
    HTTPGenerationCase(
        name="http-gen-32x32",
        count=3000,
        prompt_tokens=32,
        outputs=32,
        in_flight=256,
        targets=_requests((600,), (391,)),
    ),
    HTTPEmbeddingCase(
        name="http-emb-1x32",
        count=20_000,
        texts=1,
        tokens=32,
        in_flight=256,
        base64=False,
        targets=_requests((5000,), (946,)),
    ),
    HTTPEmbeddingCase(
        name="http-emb-1x256",
        count=16_000,
        texts=1,
        tokens=256,
        in_flight=256,
        base64=False,
        targets=_requests((4000,), (681,)),
    ),
    HTTPEmbeddingCase(
        name="http-emb-32x128",
        count=2000,
        texts=32,
        tokens=128,
        in_flight=32,
        base64=True,
        targets=_sequences(12_000, 1618),
    ),
    HTTPEmbeddingCase(
        name="http-emb-32x510",
        count=640,
        texts=32,
        tokens=510,
        in_flight=32,
        base64=True,
        targets=_sequences(4000, 649),
    ),
)
