"""The headline workloads: cases, and the prompts of each, token ids or texts of a number of tokens.

Prompts are drawn from `random.Random(SEED)`: the same on every machine and with every server.
"""

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

import msgspec

from workers.contract.token_sampling import GREEDY, TokenSampling

Shape = Literal["llama8b", "bge-base", "xlmr-large", "qwen3-reranker-0.6b"]


SEED = 123
_SHUFFLE_SEED = 7
_LARGEST_ID = 20_000


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A workload: `count` requests, groups or sequences. Reports show its `headlines`."""

    name: str
    count: int
    headlines: tuple[str, ...]
    shape: Shape

    @property
    def what(self) -> str:
        """The numbers of the workload by the names of its fields, such as `count=256 own=128`."""
        values = ((field, getattr(self, field.name)) for field in msgspec.structs.fields(self))
        return " ".join(
            f"{field.name}={value}"
            for field, value in values
            if isinstance(value, int | float) and value != field.default
        )

    def scaled(self, scale: float) -> Self:
        """A copy with that fraction of the count, at least 1."""
        return msgspec.structs.replace(self, count=max(1, math.ceil(self.count * scale)))


class OfflineCase(Case, frozen=True, kw_only=True):
    """Token ids: `count` groups of `members` prompts, group after group or `shuffled`.

    A prompt has `prefix` tokens that its group shares, and `own` ones (or up to `most_own`, if that
    is given). In the first of every `long_every` groups (0: none) these are `long_own` instead. A
    group may have `documents`, each with `document` more shared tokens and members of its own.
    """

    largest_id: ClassVar = _LARGEST_ID
    members: int = 1
    prefix: int = 0
    documents: int = 1
    document: int = 0
    own: int
    most_own: int = 0
    shuffled: bool = False
    long_every: int = 0
    long_own: int = 0

    def own_of(self, group: int) -> int:
        """The mean number of tokens of its own that a prompt of this group has."""
        if self.long_every and group % self.long_every == 0:
            return self.long_own
        return (self.own + self.most_own) // 2 if self.most_own else self.own

    @property
    def prompt_tokens(self) -> int:
        """The mean length of a prompt, over all of them."""
        own = sum(map(self.own_of, range(self.count))) // self.count
        return self.prefix + self.document + own


class GenerationCase(OfflineCase, frozen=True, kw_only=True):
    """Offline generation: each prompt is continued by exactly `outputs` tokens. With `most_outputs`
    rows end by a stop token, `outputs` tokens long in the mean and at most so many."""

    outputs: int
    most_outputs: int = 0
    sampling: TokenSampling = GREEDY
    headlines: tuple[str, ...] = ("requests_per_s",)
    shape: Shape = "llama8b"


class EncodeCase(OfflineCase, frozen=True, kw_only=True):
    """Offline prefill: each prompt becomes a vector or a score."""

    headlines: tuple[str, ...] = ("sequences_per_s",)


class DecisionCase(OfflineCase, frozen=True, kw_only=True):
    """Offline decisions: each group is an input, the `prefix`, with `members` questions of their
    own. The probabilities of `options` labels are read behind each."""

    options: int
    headlines: tuple[str, ...] = ("questions_per_s", "computed_ratio")
    shape: Shape = "llama8b"

    @property
    def needed_tokens(self) -> int:
        """The tokens of each input once, and of all questions."""
        return self.count * (self.prefix + self.members * self.own)


class HTTPGenerationCase(Case, frozen=True, kw_only=True, tag=True):
    """Streaming completions: `count` texts of `prompt_tokens`, each continued by `outputs`.

    With a `rate`, so many leave a second. Otherwise `in_flight` (None: all) are unanswered at any
    time.
    """

    path: ClassVar = "/v1/completions"
    field: ClassVar = "prompt"
    prompt_tokens: int
    outputs: int
    in_flight: int | None = None
    rate: float | None = None
    headlines: tuple[str, ...] = ("requests_per_s",)
    shape: Shape = "llama8b"


class HTTPEmbeddingCase(Case, frozen=True, kw_only=True, tag=True):
    """Embeddings: `count` requests of `texts` texts of `tokens` (special ones on top), `in_flight`
    at once. Vectors come back in `base64` or as JSON numbers."""

    path: ClassVar = "/v1/embeddings"
    field: ClassVar = "input"
    texts: int
    tokens: int
    in_flight: int
    base64: bool = False
    headlines: tuple[str, ...] = ("requests_per_s",)
    shape: Shape = "bge-base"


HTTPCase = HTTPGenerationCase | HTTPEmbeddingCase

_SHARING_PROMPTS = 6400


def _groups_of(members: int, name: str, *, shuffled: bool = True) -> GenerationCase:
    """Prompts of which so many at a time share most of theirs."""
    return GenerationCase(
        name=name,
        count=_SHARING_PROMPTS // members,
        members=members,
        prefix=2000,
        own=200,
        outputs=100,
        shuffled=shuffled,
    )


GENERATION = (
    GenerationCase(name="one", count=1, own=128, outputs=256, headlines=("output_tokens_per_s",)),
    GenerationCase(name="dec", count=256, own=128, outputs=512, headlines=("output_tokens_per_s",)),
    GenerationCase(name="rand", count=2048, own=512, outputs=256),
    _groups_of(16, "b16"),
    _groups_of(16, "b16s", shuffled=False),
    _groups_of(400, "b400"),
    GenerationCase(name="long32k", count=1, own=32_000, outputs=1, headlines=("seconds",)),
    GenerationCase(name="skew", count=1024, own=256, long_every=64, long_own=16_000, outputs=128),
)

DEGREES = tuple(
    _groups_of(members, f"degree-{members}") for members in (1, 2, 4, 8, 16, 32, 64, 128, 400)
)
"""`b16` with groups of other sizes. In `degree-1` no two prompts share anything."""

TENSORRT = tuple(
    GenerationCase(
        name=f"trt-{own}-{outputs}",
        count=count,
        own=own,
        outputs=outputs,
        headlines=("output_tokens_per_s",),
    )
    for own, outputs, count in (
        (128, 128, 1024),
        (128, 2048, 1024),
        (1000, 1000, 1024),
        (2048, 128, 1024),
        (5000, 500, 512),
        (20_000, 2000, 128),
    )
)
"""The lengths of TensorRT-LLM's published table of throughputs."""

SHARING: tuple[OfflineCase, ...] = (
    # BatchLLM (arXiv:2412.03594; vLLM RFC 12080 has its script) samples so, and lets outputs end by
    # themselves. How long those are is not published: here their lengths are exponential.
    msgspec.structs.replace(
        _groups_of(16, "batchllm"),
        most_outputs=400,
        sampling=TokenSampling(temperature=0.01, top_p=0.1),
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
        name="rerank100", shape="qwen3-reranker-0.6b", count=80, members=100, prefix=200, own=300
    ),
)

DECISIONS = (
    DecisionCase(name="decisions", count=1, prefix=8192, members=100, own=60, options=4),
    DecisionCase(name="decisions-many", count=64, prefix=2000, members=40, own=40, options=4),
)

PREFILL = (
    EncodeCase(name="emb512", shape="bge-base", count=8192, own=512),
    EncodeCase(name="emb128", shape="bge-base", count=16_384, own=128),
    EncodeCase(name="emb32", shape="bge-base", count=16_384, own=32),
    EncodeCase(name="rer512", shape="xlmr-large", count=8192, own=512),
    EncodeCase(name="rer128", shape="xlmr-large", count=16_384, own=128),
    EncodeCase(name="rer32", shape="xlmr-large", count=16_384, own=32),
)


def _lists_of_texts(name: str, count: int, tokens: int) -> HTTPEmbeddingCase:
    return HTTPEmbeddingCase(
        name=name,
        count=count,
        texts=32,
        tokens=tokens,
        in_flight=32,
        base64=True,
        headlines=("sequences_per_s",),
    )


HTTP: tuple[HTTPCase, ...] = (
    HTTPGenerationCase(name="http-gen-burst", count=512, prompt_tokens=512, outputs=128),
    HTTPGenerationCase(
        name="http-gen-16",
        count=512,
        prompt_tokens=512,
        outputs=128,
        rate=16,
        headlines=("ttft_p50_ms", "ttft_p99_ms", "tpot_mean_ms"),
    ),
    HTTPGenerationCase(
        name="http-gen-32x32", count=3000, prompt_tokens=32, outputs=32, in_flight=256
    ),
    HTTPEmbeddingCase(name="http-emb-1x32", count=20_000, texts=1, tokens=32, in_flight=256),
    HTTPEmbeddingCase(name="http-emb-1x256", count=16_000, texts=1, tokens=256, in_flight=256),
    _lists_of_texts("http-emb-32x128", count=2000, tokens=128),
    _lists_of_texts("http-emb-32x510", count=640, tokens=510),
)


def offline_prompts(case: OfflineCase, seed: int = SEED) -> list[bytes]:
    """Token ids (int32 bytes) of each prompt, uniform from 1 to 20000, in order of submission."""
    drawn = random.Random(seed)  # noqa: S311 (a workload, not a secret)
    prompts = list(_grouped(case, drawn))
    if case.shuffled:
        random.Random(_SHUFFLE_SEED).shuffle(prompts)  # noqa: S311
    return prompts


def output_lengths(case: GenerationCase, count: int) -> list[int]:
    """The tokens by which each of `count` prompts is continued. Where these differ, they are
    exponential, cut to `most_outputs`."""
    if not case.most_outputs:
        return [case.outputs] * count
    drawn = random.Random(SEED)  # noqa: S311
    lengths = [math.ceil(drawn.expovariate(1 / case.outputs)) for _ in range(count)]
    return [min(max(1, length), case.most_outputs) for length in lengths]


def _grouped(case: OfflineCase, drawn: random.Random) -> Iterator[bytes]:
    for group in range(case.count):
        prefix = _ids(drawn, case.prefix)
        for _ in range(case.documents):
            document = prefix + _ids(drawn, case.document)
            for _ in range(case.members):
                varied = drawn.randint(case.own, case.most_own) if case.most_own else 0
                yield document + _ids(drawn, varied or case.own_of(group))


def _ids(drawn: random.Random, count: int) -> bytes:
    """Draw as `drawn.randint(1, _LARGEST_ID)` does, in a fifth of the time."""
    ids = array("i")
    bits = _LARGEST_ID.bit_length()
    while left := count - len(ids):
        some = [drawn.getrandbits(bits) for _ in range(left)]
        ids.extend([number + 1 for number in some if number < _LARGEST_ID])
    return ids.tobytes()


def texts_of(words: Sequence[str], count: int, tokens: int, seed: int | str = SEED) -> list[str]:
    """`count` texts of random `words`, of so many `tokens` each if every word is one."""
    drawn = random.Random(seed)  # noqa: S311
    return ["".join(f" {word}" for word in drawn.choices(words, k=tokens)) for _ in range(count)]
