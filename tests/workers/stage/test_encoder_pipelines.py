"""Embedders, SPLADE models and cross-encoders of one to four stages give the results of one."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine_core.messages import EncodedRows, EncodeJob
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.fake_transport import Engine, FakeExecutor
from tests.engine_core.test_core import A
from tests.engine_core.workflows.test_tokenizer_threads import TEMPLATE, raw_tokenizer
from tests.workers.checkpoints import save_bert, save_masked_lm
from tests.workers.staged_engine import EncoderRunner, Visit, serve
from tests.workers.stages import EncoderStages, dense_rows
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import Task
from workers.contract.messages import EncodeStep

SAVES: dict[Task, Callable[[Path], Any]] = {
    "embed": save_bert,
    "embed_sparse": save_masked_lm,
    "classify": lambda folder: save_bert(folder, labels=1),
}

Numbers = dict[int, tuple[list[int], np.ndarray]]
"""By job: its finished rows in order, and all their results, one after the other."""
NOTHING: tuple[list[int], np.ndarray] = ([], np.empty(0, np.float32))


def traffic(task: Task) -> list[Visit]:
    """Jobs of one to six texts, a quarter of which are aborted. A cross-encoder's have a query; a
    third of an embedder's ask for the states of all tokens."""
    draw = random.Random(5)

    def words(most: int) -> str:
        return " ".join(draw.choices("abcdef", k=draw.randint(1, most)))

    made: list[Visit] = []
    for number in range(16):
        job = EncodeJob(
            number,
            texts=[words(30) for _ in range(draw.randint(1, 6))],
            query=words(9) if task == "classify" else None,
            outputs=("states",) if task == "embed" and draw.random() < 0.3 else ("vector",),
        )
        comes = draw.randrange(30)
        leaves = comes + draw.randint(1, 3) if draw.random() < 0.25 else None
        made.append(Visit(job, comes, leaves))
    return made


def answers(
    folder: Path,
    task: Task,
    visits: list[list[Visit]],
    num_stages: int = 1,
    steps_ahead: int = 0,
    *,
    wrong: bool = False,
) -> Numbers:
    """Serve each list of visits to its end, perhaps with wrong steps."""
    model = read_model_config(folder)
    stages = EncoderStages(folder, task=task, num_stages=num_stages, backend="naive")
    engine = Engine(
        Tokenizer(raw_tokenizer(TEMPLATE)),
        model.architecture,
        0,
        FakeExecutor(EncoderRunner(stages, token_lost if wrong else None)),
        model=model,
        task=task,
        max_model_len=64,
        max_step_tokens=96,
        max_pending_rows=1000,
        num_stages=num_stages,
        steps_ahead=steps_ahead,
    )
    for together in visits:
        serve(engine, together, random.Random(3))
    found: Numbers = {}
    for outputs in engine.clients.outputs(A):
        assert not outputs.failed
        for part in outputs.encoded:
            before, numbers = found.get(part.job, NOTHING)
            rows = np.frombuffer(part.rows, np.int32).tolist()
            found[part.job] = (before + rows, np.append(numbers, numbers_of(part, task)))
    return found


def numbers_of(part: EncodedRows, task: Task) -> np.ndarray:
    """Sparse vectors as dense ones: a number may be zero, or as good as zero."""
    if task == "embed_sparse":
        return dense_rows(part.counts, part.values).reshape(-1)
    return np.frombuffer(part.values, np.float32)


def differences(found: Numbers, alone: Numbers, visits: list[Visit]) -> int:
    """How many jobs have other results than alone. An aborted one has the first of them."""
    wrong = 0
    for visit in visits:
        rows, numbers = found.get(visit.job.id, NOTHING)
        all_rows, all_numbers = alone[visit.job.id]
        complete = visit.leaves is not None or rows == all_rows
        same = np.allclose(numbers, all_numbers[: len(numbers)], atol=1e-5, rtol=0)
        wrong += not (complete and rows == all_rows[: len(rows)] and same)
    return wrong


@pytest.mark.parametrize("counts", [(1, 4), pytest.param((2, 3), marks=pytest.mark.long)])
@pytest.mark.parametrize("task", SAVES)
def test_every_result_is_that_of_one_stage(
    tmp_path: Path, task: Task, counts: tuple[int, ...]
) -> None:
    """With and without steps ahead. A wrong step is noticed."""
    SAVES[task](tmp_path)
    visits = traffic(task)
    alone = answers(tmp_path, task, [[Visit(visit.job)] for visit in visits])
    for stages in counts:
        for ahead in (0, 1):
            found = answers(tmp_path, task, [visits], stages, ahead)
            assert differences(found, alone, visits) == 0
    found = answers(tmp_path, task, [visits], 2, 1, wrong=True)
    assert differences(found, alone, visits) > 0


def token_lost(message: EncodeStep) -> EncodeStep:
    """Every fourth step has another first token."""
    lost = message.step % 4 == 3
    tokens = np.int32(0).tobytes() + message.tokens[4:] if lost else message.tokens
    return msgspec.structs.replace(message, tokens=tokens)
