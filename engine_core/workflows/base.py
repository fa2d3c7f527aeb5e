"""A workflow: everything that differs between kinds of models, in one record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from engine_core.config import EngineConfig
from engine_core.job import Job
from engine_core.messages import Accepted, EncodeJob, GenerateJob, Task
from engine_core.schedulers.base import Scheduler
from engine_core.tokenization.tokenizer_threads import Text, Tokenized
from workers.contract.config import Head
from workers.contract.model_config import ModelConfig

RowsT_co = TypeVar("RowsT_co", covariant=True)


class RequestProcessor(Protocol[RowsT_co]):
    """Turns a job's message into rows that its scheduler can run."""

    def texts(self, message: GenerateJob | EncodeJob) -> list[Text]:
        """What must be tokenized first; empty for a job of ids. Raises RefusalError for a job of
        the wrong kind."""
        ...

    def prepare(self, job: Job, tokenized: list[Tokenized]) -> tuple[Accepted, RowsT_co]:
        """Check everything that can be wrong with the job. Raises RefusalError, naming the item
        and both numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Workflow:
    """The parts of one kind of model.

    `processor` gets the number of KV blocks, as `scheduler` does (0 without a KV cache). The
    scheduler builds its own StepInput (`Scheduler.build`) and processes its own StepOutput
    (`Scheduler.update`). `head` names the part of the model that ends the last stage;
    `vector_size` is the length of one row's answer, 0 for text.
    """

    head: Head
    tasks: tuple[Task, ...]
    processor: Callable[[EngineConfig, int], RequestProcessor[Any]]
    scheduler: Callable[[EngineConfig, int], Scheduler[Any, Any]]
    vector_size: Callable[[ModelConfig], int]
