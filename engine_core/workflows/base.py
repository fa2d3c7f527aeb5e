"""A workflow: everything that differs between kinds of models, in one record."""

import importlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np

from engine_core.executor.stage_start import Capacity
from engine_core.loop.jobs import Job
from engine_core.loop.outbox import Outbox
from engine_core.loop.reports import StepWork
from engine_core.messages import (
    Accepted,
    EncodeJob,
    EngineInfo,
    JobMessage,
    KeyShare,
    ReadJob,
    Usage,
)
from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.tokenizer_threads import JobInputs, Text, TokenizerThreads
from workers.contract.config import ExecutionConfig, Task
from workers.contract.messages import StepInput, StepMask
from workers.contract.model_config import ModelConfig, TokenOutput

Operation = Literal[
    "generate text",
    "read logits",
    "encode texts",
    "score pairs",
    "follow an instruction",
    "return token states",
]
"""Something that a job may require of a model."""


class Prepared(NamedTuple):
    """Rows as the job's scheduler takes them, their prompt tokens, and the job's first answer if it
    has had none."""

    rows: Any
    tokens: int
    accepted: Accepted | None = None


class RequestProcessor(Protocol):
    """Turns a job's message into rows that its scheduler can run."""

    def texts(self, message: JobMessage) -> list[Text]:
        """The texts and pairs to tokenize. Empty for a job of ids. Raises RefusalError."""
        ...

    def prepare(self, inputs: JobInputs) -> Prepared:
        """Check the items. Raises RefusalError, naming the one at fault and both numbers."""
        ...


class Scheduler(Protocol):
    """Owns every admitted row from `add` until its end.

    Its batches are the rows of one step. Features do not belong in `schedule`: a difference between
    workflows is part of the workflow.
    """

    def add(self, job: Job, rows: Any) -> None:
        """Queue the rows of a job, or its next ones, as its workflow prepares them."""
        ...

    def usage(self) -> Usage: ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that wait to be computed."""
        ...

    def tokens_before(self, priority: int, key: KeyShare | None = None) -> int:
        """Queued tokens that come before a new job of `priority` and `key`. None stands for all
        keys."""
        ...

    def abort(self, job: Job, row: int | None = None) -> int:
        """End a job's open rows, or one of them, silently. Returns how many were open.

        Their slots and KV blocks are free at once, and results in flight are ignored.
        """
        ...

    def reset_cache(self) -> None: ...

    def restart(self, lost: Iterable[Any]) -> None:
        """Have all that ran wait, in its order: the stages have gone, with these batches in flight
        and all that was cached."""
        ...

    def isolate(self, job: Job | None) -> None:
        """Have only rows of this job run from now on, or of all again. No step is in flight."""
        ...

    def schedule(self, oldest: Any) -> Any:
        """The next step, or None if no row can run now.

        `oldest` is the oldest step in flight, if any. Only its rows may be in the next step before
        their result has come, and none with `steps_ahead` 0."""
        ...

    def depth(self) -> int:
        """The most steps that may be in flight now: 1 to `ExecutionConfig.max_depth`."""
        ...

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn from a step whose work took the slowest stage `seconds` (0: unknown)."""
        ...

    def is_open(self) -> bool:
        """True if a request that arrived now could join the next step."""
        ...

    def num_prompts(self) -> int:
        """Prompts that wait, and one more if any is computed in part."""
        ...

    def build(self, batch: Any) -> StepInput: ...

    def masks(self, outbox: Outbox) -> Iterable[StepMask]:
        """Compute the masks that submitted steps wait for, in order. A job fails without any
        token."""
        ...

    def update(self, batch: Any, output: Any, outbox: Outbox) -> None:
        """Apply a step's results: advance its rows, end those that are done."""
        ...


@dataclass(frozen=True, slots=True)
class Workflow:
    """The parts of one kind of model.

    `processor` and `scheduler` get the number of KV blocks, 0 without a KV cache, the latter also a
    clock, in seconds. `task` also names the head that ends the last stage; `vector_size` is the
    length of one row's answer, 0 for text. Jobs that require other `operations` are refused.
    """

    task: Task
    operations: frozenset[Operation]
    preprocessor: Callable[[ExecutionConfig, Tokenizer], TokenizerThreads]
    processor: Callable[[ExecutionConfig, int], RequestProcessor]
    scheduler: Callable[[ExecutionConfig, int, Callable[[], float]], Scheduler]
    vector_size: Callable[[ModelConfig], int]

    def check(self, message: JobMessage) -> None:
        """Raises RefusalError for a job that this kind of model does not serve."""
        reads = isinstance(message, ReadJob)
        required: dict[Operation, bool] = {"generate text": not reads, "read logits": reads}
        if isinstance(message, EncodeJob):
            required = {
                "encode texts": True,
                "score pairs": message.query is not None,
                "follow an instruction": message.instruction is not None,
                "return token states": message.outputs != ("vector",),
            }
        for operation, is_required in required.items():
            if is_required and operation not in self.operations:
                raise RefusalError(
                    "invalid_request", f"this model does not {operation} (its task: {self.task})"
                )

    def engine_info(self, config: ExecutionConfig, capacity: Capacity) -> EngineInfo:
        return EngineInfo(
            task=self.task,
            max_model_len=config.max_model_len,
            vocab_size=config.model.vocab_size,
            vector_size=self.vector_size(config.model),
            token_sizes={name: config.model.token_size(name) for name in get_args(TokenOutput)},
            kv_tokens=config.cache_layout.tokens(capacity.num_blocks),
            weight_bytes=capacity.weight_bytes,
        )


def workflow_for(task: Task, *, has_kv_cache: bool) -> Workflow:
    """The workflow of a model that does `task`. Only its module is imported."""
    encoder = "decoder_encode" if has_kv_cache else "encode"
    module = "generate" if task == "generate" else encoder
    return importlib.import_module(f"engine_core.workflows.{module}").WORKFLOWS[task]


class RowLimit(NamedTuple):
    """The most tokens of a row of a generator, and the `bound` that they come from."""

    tokens: int
    bound: str

    @classmethod
    def of(cls, config: ExecutionConfig, num_blocks: int) -> Self:
        tokens, kv_tokens = config.max_model_len, config.cache_layout.longest(num_blocks)
        if tokens <= kv_tokens:
            return cls(tokens, "context length")
        return cls(kv_tokens, "longest sequence in the KV cache")

    def exceeded(self, param: str, has: str, at_fault: str | None = None) -> RefusalError:
        """Return the refusal of `param`, which `has` more. Another field may be `at_fault`."""
        reason = f"this model's {self.bound} is {self.tokens} tokens; {param} has {has}"
        return RefusalError("context_length_exceeded", reason, at_fault or param)


def check_vocabulary(param: str, has: str, ids: bytes, vocab_size: int) -> None:
    """Raises the refusal of `outside_vocabulary` for the first of `ids` int32 that is no token."""
    # Negative ones are beyond every vocabulary so.
    if ids and np.frombuffer(ids, np.uint32).max() >= vocab_size:
        wrong = next(token for token in array("i", ids) if not 0 <= token < vocab_size)
        raise outside_vocabulary(param, has, wrong, vocab_size)


def outside_vocabulary(param: str, has: str, token: int, vocab_size: int) -> RefusalError:
    """Return the refusal of a token id that `param` `has`: "holds", "names"."""
    reason = f"{param} {has} token id {token}; this model's vocabulary ends at {vocab_size - 1}"
    return RefusalError("invalid_request", reason, param)
