"""Messages that a worker accepts and emits. No torch: the engine core imports this module.

Arrays travel as bytes of little-endian NumPy arrays, never as lists. R is the number of rows
(sequences) of a step, T the number of tokens over all rows, S the number of rows that sample.
"""

import re
from typing import Literal, NamedTuple, Self

import msgspec

from workers.contract.model_config import TokenOutput
from workers.contract.share import Share, StageCosts
from workers.contract.token_sampling import BarredTokens, TokenBias, TokenSampling

_LINK = re.compile(rb"([a-z]+)-(\d+)-(\d+)")


class LinkName(NamedTuple):
    """The name of a worker's link: what it is for, the stage, and how many times the stages had
    been started before. So links of stages that are gone differ from those of their successors.
    """

    use: str
    stage: int
    restarts: int

    def __bytes__(self) -> bytes:
        return f"{self.use}-{self.stage}-{self.restarts}".encode()

    @classmethod
    def of(cls, name: bytes) -> Self | None:
        """None for what is no such name."""
        found = _LINK.fullmatch(name)
        return found and cls(found[1].decode(), int(found[2]), int(found[3]))


LIKELIEST = -1
"""Among the tokens to read: whichever the row most likely continues with."""


class SlotInit(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A request moves into a slot: everything about it that later steps do not repeat.

    prompt_len      tokens of the prompt
    seed            of the row's random numbers, in [0, 2**63)
    sampling        how each of its tokens is chosen
    logprobs        alternatives reported beside each sampled token; -1: no log-probabilities at all
    prompt_logprobs the same for scored prompt tokens
    known_tokens    int32, prompt first; empty unless `sampling` has a penalty, which counts them
    bias            added to its logits (`logit_bias`)
    barred          tokens that must not come yet (`min_tokens`)
    read            int32, tokens whose log-probabilities are reported where the row is sampled, or
                    `LIKELIEST`
    """

    slot: int
    prompt_len: int
    seed: int
    sampling: TokenSampling
    logprobs: int = -1
    prompt_logprobs: int = -1
    known_tokens: bytes = b""
    bias: TokenBias = TokenBias()
    barred: BarredTokens = BarredTokens()
    read: bytes = b""


class DecodeStep(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="decode_step"):
    """One step of rows with a KV cache, the same message for every stage.

    tokens          int32[T]    input ids, rows one after another; -1: take the token that was last
                                sampled for the row's slot (first stage's slot buffer)
    query_lens      int32[R]    tokens of each row in this step
    slots           int32[R]    the row's slot
    starts          int32[R]    tokens of the row already in the KV cache
    sample          uint8[R]    1 where the row's last position is sampled
    block_updates   int32[N, 3] (slot, index in the slot's block tables, block id): these tables
                    (`CacheLayout`) follow one another, each as long as `max_blocks`
    block_copies    int32[C, 2] (from, to): whole blocks that are copied before the step's own keys
                    and values are written
    groups          int32[G, 3] (first row, rows, prefix tokens): neighbouring rows whose block
                    tables of layers without a window begin with the same blocks, or copies of
                    them, which hold `prefix tokens`, a multiple of the block size; none of these
                    rows starts before them.
                    Decode rows and chunks are never in one group
    inits           slots that change hands, applied before anything else
    after           the step whose sampled tokens the first stage must hold first; -1 for none
    targets         int32[T]    empty unless a row is scored; the token that follows each position,
                                -1 where no log-probability is requested
    masked          uint8[S]    empty, or 1 where a sampled row must wait for its part of the step's
                                StepMask
    """

    step: int
    tokens: bytes
    query_lens: bytes
    slots: bytes
    starts: bytes
    sample: bytes
    block_updates: bytes = b""
    block_copies: bytes = b""
    groups: bytes = b""
    inits: list[SlotInit] = []
    after: int = -1
    targets: bytes = b""
    masked: bytes = b""


class EncodeStep(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="encode_step"):
    """One step of whole texts, the same message for every stage. What is all 0 may be empty.

    tokens          int32[T]    input ids, rows one after another
    query_lens      int32[R]    tokens of each row
    token_types     uint8[T]    segment of each token
    requested       uint8[R] for each output of tokens that any row requests, 1 for those rows
    unpooled_lens   int32[R]    the row's first tokens that are not pooled, fewer than all
    unattended_lens int32[R]    the row's last tokens, to which none attends, fewer than all
    """

    step: int
    tokens: bytes
    query_lens: bytes
    token_types: bytes = b""
    requested: dict[TokenOutput, bytes] = {}
    unpooled_lens: bytes = b""
    unattended_lens: bytes = b""


StepInput = DecodeStep | EncodeStep


class StepMask(msgspec.Struct, array_like=True, frozen=True, tag="mask"):
    """Which tokens the masked rows of a step may sample, for the last stage alone.

    Each DecodeStep with masked rows has one, sent at any time after it: later steps may come first.
    It may depend on an earlier step's result, which a worker must send before it waits for it.

    bits    int32[M, ceil(V / 32)] of the M masked rows, in order: bit i % 32 of word i // 32 is 1
            where the row may sample token i
    """

    step: int
    bits: bytes


class Logprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities of N tokens, each with `width` alternatives, best first.

    chosen float32[N], top_ids int32[N, width], top float32[N, width], of the raw logits (before
    temperature and truncation). Rows that requested fewer than `width` ignore the rest. Scored
    tokens have `ranks` int32[N] among all tokens by likelihood, from 1.
    """

    width: int
    chosen: bytes
    top_ids: bytes
    top: bytes
    ranks: bytes = b""


class StepTimes(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Times of one step on one stage, in microseconds.

    The stage waits, computes and sends on, in this order, without gaps.

    start_us     when the stage began the step: its earlier work was done, and this step had been
                 launched. By the host's monotonic clock, which its processes share; 0 if unknown.
                 On CUDA with an error below 100 µs, so a step may seem to begin before the end of
                 the one before
    idle_us      time before that for which the device had nothing to do; -1 where that is not
                 measured
    wait_us      then, until the activations of the stage before had come, or on the first stage
                 the sampled tokens of an earlier step; on the last one for a mask, too
    busy_us      for the stage's own layers, and on the last stage the head
    transfer_us  until the activations, or the result, had been sent on; where a thread sends them
                 (gloo), until it had them
    """

    start_us: int = 0
    idle_us: int = -1
    wait_us: int = 0
    busy_us: int = 0
    transfer_us: int = 0

    @property
    def end_us(self) -> int:
        """When the stage was done with the step, of the same clock as `start_us`."""
        return self.start_us + self.wait_us + self.busy_us + self.transfer_us


class StageReport(msgspec.Struct, array_like=True, frozen=True, tag="report"):
    """A stage before the last one has done its part of a step. Reports come in submit order; the
    last stage's is part of its output."""

    stage: int
    step: int
    times: StepTimes = StepTimes()


class FinishedStep(msgspec.Struct, array_like=True, frozen=True):
    """A step that the last stage has finished. Each head adds its rows' results, in order."""

    step: int
    times: StepTimes = StepTimes()


class GenerateOutput(FinishedStep, frozen=True, kw_only=True, tag="generate"):
    """Tokens of S sampled rows.

    tokens    int32[S]     sampled ids; -1 where the row's logits were not finite
    sampled   log-probabilities of the S sampled tokens, if any row of the step requests them
    scored    log-probabilities of the positions with a target, if the step has targets
    read      float32[N], log-probabilities of the tokens that are read of sampled rows, row after
              row; none is finite where the row's logits were not
    """

    tokens: bytes = b""
    sampled: Logprobs | None = None
    scored: Logprobs | None = None
    read: bytes = b""


class EmbedOutput(FinishedStep, frozen=True, kw_only=True, tag="embed"):
    """Dense vectors float32[R, D] of a model that pools, and what is requested of `tokens`.

    Each is float32[S, token_size] of all tokens of the rows that request it. A failed row holds
    NaN.
    """

    vectors: bytes = b""
    tokens: dict[TokenOutput, bytes] = {}


class EmbedSparseOutput(FinishedStep, frozen=True, kw_only=True, tag="embed_sparse"):
    """Sparse vectors of R rows. A failed row holds NaN.

    entries   float32[E, 2]  index and value of each number that is not zero, rows one after
                             another, indices ascending
    counts    int32[R]       how many of the E are each row's
    """

    entries: bytes
    counts: bytes


class ClassifyOutput(FinishedStep, frozen=True, kw_only=True, tag="classify"):
    """Logits, float32[R, num_labels]. A failed row holds NaN."""

    logits: bytes


StepOutput = GenerateOutput | EmbedOutput | EmbedSparseOutput | ClassifyOutput


class WorkerConnected(msgspec.Struct, array_like=True, frozen=True, tag="connected"):
    """The stage is connected to its neighbours, and waits for its `Share` of the layers. `costs`
    are given if the layers are divided by measurement."""

    stage: int
    costs: StageCosts | None = None


class WorkerLoaded(msgspec.Struct, array_like=True, frozen=True, tag="loaded"):
    """The weights of the stage's share are in place. `kv_block_bytes` is 0 for a stage without a
    KV cache."""

    stage: int
    weight_bytes: int
    seconds: float
    kv_block_bytes: int
    kv_budget_bytes: int


class AllocateKV(msgspec.Struct, array_like=True, frozen=True, tag="allocate"):
    """The engine's answer to every stage's `WorkerLoaded`: allocate, warm up, report."""

    num_blocks: int


class WorkerReady(msgspec.Struct, array_like=True, frozen=True, tag="ready"):
    """The stage has allocated and run one step of every shape."""

    stage: int


class WorkerFailed(msgspec.Struct, array_like=True, frozen=True, tag="failed"):
    """The stage cannot go on: its process exits. `message` is one line for a person.
    `neighbour_lost`: it failed at a link to another stage, which may have been lost before."""

    stage: int
    message: str
    neighbour_lost: bool = False


class WorkerBeat(msgspec.Struct, array_like=True, frozen=True, tag="beat"):
    """The stage's process is alive. `last_finished_step` is the newest step of which it has done
    its share (on CUDA: queued all work), -1 before the first."""

    stage: int
    last_finished_step: int


class SampledTokens(msgspec.Struct, array_like=True, frozen=True):
    """Last stage → first stage: the tokens of one step's S rows that sample, int32[S]."""

    step: int
    tokens: bytes


class StoreCall(msgspec.Struct, array_like=True, frozen=True, tag="store"):
    """A call of `torch.distributed.Store`, by which process groups find each other. `check` has
    `keys`, and the others that need one a `key`."""

    method: Literal["set", "get", "compare_set", "add", "check", "delete", "num_keys"]
    key: str = ""
    value: bytes = b""
    expected: bytes = b""
    amount: int = 0
    keys: list[str] = []


class StoreAnswer(msgspec.Struct, array_like=True, frozen=True, tag="store"):
    """The engine core's answer to a `StoreCall`, at once: None if nothing is set."""

    value: bytes | int | bool | None = None


ToWorker = StepInput | StepMask | Share | AllocateKV | StoreAnswer
FromWorker = (
    StepOutput
    | StageReport
    | WorkerConnected
    | WorkerLoaded
    | WorkerReady
    | WorkerBeat
    | WorkerFailed
    | StoreCall
)
