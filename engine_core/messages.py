"""The messages between an engine core and its clients (msgspec over ZMQ).

A job's first answer is `Accepted` or `Failed`. That of an `EncodeJob` does not wait until its texts
are tokenized. Each row of an accepted job then ends exactly once:
by a `RowOutput` with a `finish`, in an `EncodedRows`, or with all others by `Failed`. A client
chooses the ids of its jobs; two clients may use the same.
"""

from functools import partial
from operator import attrgetter
from typing import Annotated, Literal, NamedTuple, get_type_hints

import msgspec

from engine_core.refusal import ErrorCode
from engine_core.turn_format import TurnFormat
from workers.contract.config import Task
from workers.contract.messages import Logprobs, StepTimes
from workers.contract.model_config import TokenOutput
from workers.contract.token_sampling import TokenSampling

Finish = Literal["stop", "length", "abort"]

GrammarKind = Literal["json_schema", "loose_json_schema", "regex", "choice"]


class Grammar(msgspec.Struct, array_like=True, frozen=True):
    """The grammar that a row's whole text must match.

    `source` is a JSON schema, a regular expression or a JSON list of texts. `param` is the field of
    the request that it comes from. A loose schema is followed as far as it can be.
    """

    kind: GrammarKind
    source: str
    param: str


class ToolRules(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A tool that a turn may call. `parameters` is the JSON schema of its arguments, followed as
    far as it can be unless `strict`. `param` is the field of the request that it comes from."""

    name: str
    parameters: str
    strict: bool
    param: str


class TurnRules(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The parts that an assistant's turn may have besides free text.

    form        how reasoning and calls are written
    tools       those that may be called
    calls       whether calls may come, must, or must not
    parallel    whether more than one call may come
    in_reasoning      whether the prompt ends inside reasoning
    reasoning_budget  tokens of reasoning after which it is closed; None: no limit
    text        what the text of a turn without calls must match, behind the reasoning
    """

    form: TurnFormat
    tools: tuple[ToolRules, ...] = ()
    calls: Literal["auto", "none", "required"] = "auto"
    parallel: bool = True
    in_reasoning: bool = False
    reasoning_budget: int | None = None
    text: Grammar | None = None

    @property
    def param(self) -> str:
        """The field of the request that all its tools come from, or the text's."""
        if self.tools:
            return self.tools[0].param.partition("[")[0]
        return self.text.param if self.text else ""


class SamplingParams(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """How a row's tokens are sampled, when it ends and which log-probabilities are reported.

    sampling        how each token is chosen from its logits
    logit_bias      added to the logits of the token ids that it names, before `sampling`
    allowed_token_ids  the only tokens that may be sampled; all, if it is empty
    bad_words       the ids of each word that is never written
    grammar         what the text must match
    turn            what an assistant's turn may hold; in place of `grammar`, which is part of it
    seed            None draws one for each row
    max_tokens      None runs to the model's length
    lowered_to_fit  whether `max_tokens` is lowered to what a prompt leaves of that, one at least
    min_tokens      how many come before any of `eos_token_ids` and `stop_token_ids` may
    eos_token_ids   the model's own end tokens
    ignore_eos      whether `eos_token_ids` are disregarded
    stop_token_ids  the request's own end tokens
    logprobs        alternatives reported beside each sampled token; None: no log-probabilities
    prompt_logprobs the same for the prompt's tokens; its first row reports them
    logprob_token_ids  int32, if any: alternatives to sampled tokens in place of the likeliest
    """

    sampling: TokenSampling = TokenSampling()
    logit_bias: dict[int, float] = {}
    allowed_token_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None
    turn: TurnRules | None = None
    seed: int | None = None
    max_tokens: int | None = None
    lowered_to_fit: bool = False
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: bytes = b""


class KeyShare(msgspec.Struct, array_like=True, frozen=True):
    """An API key: its number, 0 where there are no others, and its weight beside others."""

    number: int = 0
    weight: float = 1.0


NO_KEY = KeyShare()


class Hello(msgspec.Struct, array_like=True, frozen=True, tag="hello"):
    """The first message of a client, answered by `EngineInfo` once the core is ready."""


class Tokenization(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """How a job's texts are tokenized, and how its items are truncated.

    Items longer than `truncate_to` tokens, special tokens included, lose tokens from
    `truncation_side`; special tokens are kept. Only the second text of a pair is truncated. The
    first `unpooled` tokens of each text are a prompt that an embedder does not pool.
    """

    add_special_tokens: bool = True
    truncate_to: int | None = None
    truncation_side: Literal["left", "right"] = "right"
    unpooled: int = 0

    def most_tokens(self, max_model_len: int) -> int:
        """The most tokens that an item can keep: a longer one is truncated, or refused."""
        return max_model_len if self.truncate_to is None else self.truncate_to


class JobOptions(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Options of either kind of job. Cached prefixes are shared only within one `cache_salt`. Jobs
    of a lower `priority` begin first."""

    cache_salt: str = ""
    tokenization: Tokenization = Tokenization()
    priority: int = 0
    key: KeyShare = NO_KEY


class _Job(JobOptions, array_like=True, frozen=True):
    """A job of `texts`, tokenized by `tokenization`, or of `ids` (int32 bytes), which may be
    truncated. Jobs of a `batch` begin after all others."""

    id: int
    texts: list[str] = []
    ids: list[bytes] = []
    batch: bool = False


class GenerateJob(_Job, array_like=True, frozen=True, kw_only=True, tag="generate"):
    """`n` rows for each prompt, a prompt's rows side by side: row = prompt * n + choice.

    Rows of a `batch` are never refused for the time that they would wait.
    """

    params: SamplingParams
    n: int = 1


Output = Literal["vector"] | TokenOutput


class Marks(msgspec.Struct, array_like=True, frozen=True):
    """Tokens beside those of each text.

    A `marker` is behind the first one, then as many of `filler` as make it `length` tokens, which
    are `attended` to or not.
    """

    marker: int | None = None
    filler: int = 0
    length: int = 0
    attended: bool = False


class EncodeJob(_Job, array_like=True, frozen=True, kw_only=True, tag="encode"):
    """One row for each item, which is embedded or scored: alone, against `query`, or against its
    own entry of `query`. Its answer has `outputs`: the vector or logits, or numbers of each token.

    Ids cannot be scored. `instruction` replaces the default of a reranker whose template has one.
    """

    query: str | list[str] | None = None
    instruction: str | None = None
    outputs: tuple[Output, ...] = ("vector",)
    marks: Marks | None = None


class ReadJob(_Job, array_like=True, frozen=True, kw_only=True, tag="read"):
    """Prompts that are not continued. After each, the log-probabilities of some tokens are read.

    pieces   texts, each tokenized once: without added special tokens, and those that follow others
             in any prompt as what continues a text
    prompts  the numbers of the pieces of each row
    tokens   int32, the ids that are read of each row; `LIKELIEST` reads the likeliest of all
    """

    pieces: list[str]
    prompts: list[tuple[int, ...]]
    tokens: list[bytes]


JobMessage = GenerateJob | EncodeJob | ReadJob


class Abort(msgspec.Struct, array_like=True, frozen=True, tag="abort"):
    """The client no longer wants these jobs. Unfinished rows end silently."""

    ids: list[int]


class EndRow(msgspec.Struct, array_like=True, frozen=True, tag="end_row"):
    """The client has ended one row of a job itself, at a stop string. The core sends nothing more
    for it."""

    job: int
    row: int


class ResetCache(msgspec.Struct, array_like=True, frozen=True, tag="reset_cache"):
    """Forget every cached prefix that no running row uses: later prompts are computed anew."""


MAX_TRACE_SECONDS = 60.0


class Trace(msgspec.Struct, array_like=True, frozen=True, tag="trace"):
    """Send the times of all steps that end in the next `seconds`, at most MAX_TRACE_SECONDS. The
    answer is a `TracedSteps` a second."""

    seconds: float


class EngineInfo(msgspec.Struct, array_like=True, frozen=True, tag="info"):
    """The model of a ready engine. `vector_size` is 0 for a generator, and the size of the
    vocabulary for sparse vectors; `token_sizes` are the numbers of a token. The KV cache holds
    `kv_tokens`, in sequences of `max_model_len` if layers have windows."""

    task: Task
    max_model_len: int
    vocab_size: int
    vector_size: int
    token_sizes: dict[TokenOutput, int]
    kv_tokens: int
    weight_bytes: int


class Accepted(msgspec.Struct, array_like=True, frozen=True, tag="accepted"):
    """The job is admitted.

    `prompt_tokens` holds the length of each prompt of a generate or read job, `prompt_ids` the ids
    (int32) of each prompt of a generate job, `piece_tokens` the length of each piece of a read job.
    `ignored` are the paths of what a loose schema's grammar leaves out.
    """

    id: int
    prompt_tokens: list[int] = []
    prompt_ids: list[bytes] = []
    ignored: tuple[str, ...] = ()
    piece_tokens: list[int] = []


class Failed(msgspec.Struct, array_like=True, frozen=True, tag="failed"):
    """The job is refused, or every row of it that has not ended fails. `param` names the field at
    fault; `retry_after` is the expected wait in seconds for which the engine refused the job."""

    id: int
    code: ErrorCode
    message: str
    param: str | None = None
    retry_after: float | None = None


class RowOutput(msgspec.Struct, array_like=True, frozen=True):
    """One row's update in one step.

    token    the sampled token, -1 if there is none; with `finish` "stop" it is the stop token,
             which counts as generated and is not part of the text
    finish   why the row has ended; None if it goes on
    sampled  the log-probabilities of `token`
    scored   those of some prompt tokens: they arrive in chunks, in order, up to the row's first
             token, together one entry for each prompt token except the first
    cached   prompt tokens found in the prefix cache; only in the row's first update
    """

    job: int
    row: int
    token: int = -1
    finish: Finish | None = None
    sampled: Logprobs | None = None
    scored: Logprobs | None = None
    cached: int = 0


class EncodedRows(msgspec.Struct, array_like=True, frozen=True):
    """Finished rows of an encode or a read job: row numbers `rows` int32[N], and `values`
    float32[V, D], row after row.

    A row has one vector, with a classifier one logit a label. Otherwise `counts` int32[N] is how
    many each row has: an output of its tokens, the numbers of several outputs one after another,
    the entries of its sparse vector, or the natural logarithms of the probabilities of its tokens
    that are read. An entry is an index and a value that is not zero, by ascending index.

    `lens` int32[N] are each row's tokens, `dropped` int32[N] those that truncation has removed,
    empty where that is nothing, and `ids` (int32) its own with token vectors or weights.
    """

    job: int
    rows: bytes
    values: bytes
    counts: bytes = b""
    lens: bytes = b""
    dropped: bytes = b""
    ids: list[bytes] = []


class JobTiming(msgspec.Struct, array_like=True, frozen=True):
    """Seconds from one moment of a job to the next.

    tokenize  from its arrival until its grammar is compiled and its texts are tokenized, those of a
              first row of an encoder
    queue     until a step begins to compute its first row
    prefill   until the first token of a generate job, or the last row of another
    cached    tokens of its prompts that were found in the prefix cache, summed over its rows
    found     those of the row that began first: before the job had computed any itself
    """

    id: int
    tokenize: float
    queue: float
    prefill: float
    cached: int
    found: int = 0


class Outputs(msgspec.Struct, array_like=True, frozen=True, tag="outputs"):
    """All updates for one client: at most one message a step."""

    rows: list[RowOutput] = []
    encoded: list[EncodedRows] = []
    accepted: list[Accepted] = []
    failed: list[Failed] = []
    timings: list[JobTiming] = []


class TracedStep(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A step that every stage has done, in these `times` by stage.

    `prompt_tokens` of its tokens are not those of decode rows; `context_tokens` is the sum of its
    rows' lengths up to then. `continued`: there was a job ever since the step before was submitted.
    """

    step: int
    rows: int
    tokens: int
    prompt_tokens: int
    context_tokens: int
    continued: bool
    times: list[StepTimes]


class TracedSteps(msgspec.Struct, array_like=True, frozen=True, tag="traced"):
    """Steps since the last such message. `over` if there are no more to come."""

    steps: list[TracedStep]
    over: bool


class EngineMetric(NamedTuple):
    """How a field is shown. `name` comes after `penstock_engine_`."""

    kind: Literal["gauge", "counter"]
    name: str
    text: str


_gauge, _counter = partial(EngineMetric, "gauge"), partial(EngineMetric, "counter")

STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a step: the bounds of `Beat.step_sizes`, those of vLLM's `iteration_tokens_total`."""


class Usage(msgspec.Struct, array_like=True, kw_only=True):
    """The scheduler's part."""

    running: Annotated[int, _gauge("running_rows", "Rows in a slot.")] = 0
    waiting: Annotated[int, _gauge("waiting_rows", "Rows that wait for a slot.")] = 0
    kv_blocks_used: Annotated[int, _gauge("kv_blocks_used", "KV blocks in use.")] = 0
    kv_blocks_total: Annotated[int, _gauge("kv_blocks", "KV blocks there are.")] = 0
    kv_blocks_peak: Annotated[
        int,
        _gauge(
            "kv_blocks_peak",
            "Most KV blocks in use at once, since the start or the cache's last reset.",
        ),
    ] = 0
    queried_tokens: Annotated[
        int, _counter("prefix_queried_tokens", "Prompt tokens looked up in the prefix cache.")
    ] = 0
    cached_tokens: Annotated[
        int, _counter("cached_tokens", "Prompt tokens from the prefix cache.")
    ] = 0
    generated_tokens: Annotated[int, _counter("generated_tokens", "Sampled tokens.")] = 0
    preemptions: Annotated[int, _counter("preemptions", "Rows that gave their KV blocks back.")] = 0


class StageTime(msgspec.Struct, array_like=True, kw_only=True):
    """The times of one stage since its start, in seconds. Together they miss the time without
    requests."""

    busy_s: Annotated[
        float, _counter("busy_seconds", "Time in the stage's own layers and its head.")
    ] = 0.0
    waiting_s: Annotated[
        float,
        _counter(
            "waiting_seconds",
            "Time that a stage with a step waited for the stage before, for tokens or for a mask.",
        ),
    ] = 0.0
    transfer_s: Annotated[
        float, _counter("transfer_seconds", "Time to send activations or results on.")
    ] = 0.0
    idle_s: Annotated[
        float,
        _counter("idle_seconds", "Time that the stage had no step, though there were requests."),
    ] = 0.0


class Loss(msgspec.Struct, array_like=True, frozen=True):
    """The last loss of stages: why, how many seconds ago, and after how many others were ready in
    their place. None: not yet."""

    why: str
    ago_s: float
    outage_s: float | None


class Beat(msgspec.Struct, array_like=True, kw_only=True, tag="beat"):
    """The loop's heartbeat, once a second to every client, and when stages are lost or ready again.

    Times are in seconds. `expected_wait_s` is for a job of priority 0; 0 while it is unknown.
    `admitted_rows` and `admitted_tokens` are those of all jobs that have not ended.
    """

    usage: Usage
    stages: list[StageTime]
    expected_wait_s: Annotated[
        float,
        _gauge(
            "expected_wait_seconds", "How long a request that comes now would wait until it begins."
        ),
    ] = 0.0
    stalled_s: Annotated[float, _gauge("stalled_seconds", "Age of the oldest step in flight.")] = (
        0.0
    )
    steps: Annotated[int, _counter("steps", "Steps.")] = 0
    step_tokens: Annotated[int, _counter("step_tokens", "Tokens that steps computed.")] = 0
    steps_in_flight: Annotated[
        int, _gauge("steps_in_flight", "Steps submitted and not finished.")
    ] = 0
    last_step_age_s: Annotated[
        float, _gauge("last_step_age_seconds", "Time since a step finished, or the start.")
    ] = 0.0
    prompt_tokens: Annotated[int, _counter("prompt_tokens", "Prompt tokens.")] = 0
    step_sizes: list[int]
    """Steps of at most STEP_SIZES[i] tokens, and more than the size before. The last entry counts
    all larger ones."""
    admitted_rows: int = 0
    admitted_tokens: int = 0
    restarts: Annotated[int, _counter("restarts", "Times that lost stages were started again.")] = 0
    loss: Loss | None = None

    @property
    def has_stages(self) -> bool:
        """Whether there are stages to compute anything now."""
        return self.loss is None or self.loss.outage_s is not None


ToCore = Hello | JobMessage | Abort | EndRow | ResetCache | Trace
"""What a client sends: lists of these."""
FromCore = EngineInfo | Outputs | Beat


def _fields(kind: type[Usage] | type[Beat] | type[StageTime]) -> dict[str, EngineMetric]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field: metadata
        for field, hint in hints.items()
        for metadata in getattr(hint, "__metadata__", ())
    }


_ENGINE = {f"usage.{field}": metric for field, metric in _fields(Usage).items()} | _fields(Beat)
_STAGE = _fields(StageTime)

ENGINE_METRICS, metric_values = tuple(_ENGINE.values()), attrgetter(*_ENGINE)
"""Metrics of a `Beat`, and the function that returns their values in that order."""
STAGE_METRICS, stage_values = tuple(_STAGE.values()), attrgetter(*_STAGE)
"""Likewise of a `StageTime`."""
