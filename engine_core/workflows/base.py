"""A workflow: everything that differs between kinds of models, in one record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from engine_core.executor.base import Capacity
from engine_core.loop.jobs import Job
from engine_core.messages import Accepted, EncodeJob, EngineInfo, GenerateJob
from engine_core.preprocessing.job_inputs import JobInputs, Text
from engine_core.refusal import RefusalError
from engine_core.schedulers.base import Scheduler
from engine_core.tokenization.tokenizer import Tokenizer
from workers.contract.config import ExecutionConfig, Task
from workers.contract.model_config import ModelConfig

Operation = Literal[
    "generate text", "encode texts", "score pairs", "follow an instruction", "return token states"
]
"""Something that a job may require of a model."""


class Preprocessor(Protocol):
    """Does in threads what would hold the loop up: tokenizing, compiling a grammar."""

    def fileno(self) -> int:
        """Readable when `take` has something, for the loop's poller."""
        ...

    def put(self, job: Job, texts: list[Text]) -> JobInputs | None:
        """Queue a job, whose `texts` are to be tokenized. Returns its inputs at once where there is
        nothing to wait for."""
        ...

    def take(self) -> list[JobInputs]:
        """The inputs that are ready, each once."""
        ...


class RequestProcessor(Protocol):
    """Turns a job's message into rows that its scheduler can run."""

    def texts(self, message: GenerateJob | EncodeJob) -> list[Text]:
        """The texts and pairs to tokenize; empty for a job of ids. Raises RefusalError."""
        ...

    def prepare(self, inputs: JobInputs) -> tuple[Accepted, Any]:
        """Check everything that can be wrong with the job. Raises RefusalError, naming the item
        and both numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Workflow:
    """The parts of one kind of model.

    `processor` gets the number of KV blocks (0 without a KV cache), as `scheduler` does, which also
    gets a clock, in seconds. The scheduler builds its own step message (`Scheduler.build`) and
    processes the result (`Scheduler.update`). `task` also names the head that ends the last stage;
    `vector_size` is the length of one row's answer, 0 for text. Jobs that require an operation
    which is not in `operations` are refused.
    """

    task: Task
    operations: frozenset[Operation]
    preprocessor: Callable[[ExecutionConfig, Tokenizer], Preprocessor]
    processor: Callable[[ExecutionConfig, int], RequestProcessor]
    scheduler: Callable[[ExecutionConfig, int, Callable[[], float]], Scheduler[Any, Any, Any]]
    vector_size: Callable[[ModelConfig], int]

    def check(self, message: GenerateJob | EncodeJob) -> None:
        """Raises RefusalError for a job that this kind of model does not serve."""
        for operation in _required_by(message):
            if operation not in self.operations:
                reason = f"this model does not {operation} (its task: {self.task})"
                raise RefusalError("invalid_request", reason)

    def engine_info(self, config: ExecutionConfig, capacity: Capacity) -> EngineInfo:
        """What a ready engine tells its clients of its model."""
        return EngineInfo(
            task=self.task,
            max_model_len=config.max_model_len,
            vocab_size=config.model.vocab_size,
            vector_size=self.vector_size(config.model),
            hidden_size=config.model.hidden_size,
            kv_tokens=capacity.num_blocks * config.block_size,
            weight_bytes=capacity.weight_bytes,
        )


def _required_by(message: GenerateJob | EncodeJob) -> list[Operation]:
    if isinstance(message, GenerateJob):
        return ["generate text"]
    operations: list[Operation] = ["encode texts"]
    if message.query is not None:
        operations.append("score pairs")
    if message.instruction is not None:
        operations.append("follow an instruction")
    if message.token_states:
        operations.append("return token states")
    return operations
