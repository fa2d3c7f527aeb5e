"""Whole engines of one to four stages give each request the text that it gets alone on one."""

import random
from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine_core.messages import GenerateJob, SamplingParams
from engine_core.schedulers.decoder import DecoderScheduler
from tests.engine_core.driver import hope
from tests.engine_core.fake_transport import Engine, FakeExecutor
from tests.engine_core.grammars import GRAMMARS
from tests.engine_core.masked_driver import STOPS, TOKENIZER
from tests.engine_core.test_core import A, Ledger
from tests.workers.checkpoints import LLAMA, save_llama
from tests.workers.inline_engine import Mutation
from tests.workers.staged_engine import DecoderRunner, Visit, serve
from tests.workers.stages import NUM_BLOCKS, Stages
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.messages import DecodeStep
from workers.contract.token_sampling import GREEDY, TokenSampling

FEW_BLOCKS = 20
"""Room for one request and a little more."""

SAMPLINGS = [
    GREEDY,
    TokenSampling(temperature=0.8),
    TokenSampling(temperature=1.3, top_k=30, frequency_penalty=0.5),
    TokenSampling(repetition_penalty=1.3, top_p=0.9),
]

Texts = dict[tuple[int, int], list[int]]
"""Tokens by job and row."""


def traffic() -> list[Visit]:
    """Jobs of one or two rows. Half of the prompts begin alike, half of the texts follow a grammar,
    a quarter of the jobs are aborted."""
    draw = random.Random(1)
    common = draw.choices(range(3, LLAMA["vocab_size"]), k=30)
    made: list[Visit] = []
    for number in range(24):
        begin = common[: draw.randrange(31)] if draw.random() < 0.5 else []
        prompt = begin + draw.choices(range(3, LLAMA["vocab_size"]), k=draw.randint(1, 20))
        params = SamplingParams(
            sampling=draw.choice(SAMPLINGS),
            grammar=draw.choice(GRAMMARS) if draw.random() < 0.5 else None,
            seed=number,
            max_tokens=draw.randint(1, 14),
            eos_token_ids=STOPS,
        )
        ids = [array("i", prompt).tobytes()]
        comes = draw.randrange(40)
        leaves = comes + draw.randint(1, 12) if draw.random() < 0.25 else None
        made.append(
            Visit(GenerateJob(number, params=params, ids=ids, n=draw.randint(1, 2)), comes, leaves)
        )
    return made


TRAFFIC = traffic()
LONG = [(2, 2), (2, 3), (3, 3), (3, 4), (3, 5), (4, 4), (4, 5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_llama(folder)
    TOKENIZER.raw.save(str(folder / "tokenizer.json"))
    return folder


def engine_over(
    runner: DecoderRunner, folder: Path, num_blocks: int = FEW_BLOCKS, **changes: Any
) -> Engine:
    changes["model"] = read_model_config(folder)
    executor = FakeExecutor(runner)
    return Engine(TOKENIZER, "LlamaForCausalLM", num_blocks, executor, **changes)


@pytest.fixture(scope="module", params=["auto", "fp8_e4m3"])
def kv_cache_dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(folder: Path, kv_cache_dtype: str) -> Texts:
    """The texts of one stage, one job after the other, with memory for all."""
    stages = Stages(folder, backend="naive", kv_cache_dtype=kv_cache_dtype)
    engine = engine_over(DecoderRunner(stages), folder, NUM_BLOCKS, steps_ahead=0)
    for visit in TRAFFIC:
        serve(engine, [Visit(visit.job)], random.Random(0))
    return Ledger(engine, A).tokens


def differences(engine: Engine, alone: Texts) -> int:
    """Serve the traffic, and count the rows with another text than alone. Rows of an aborted job
    have the beginning of theirs."""
    serve(engine, TRAFFIC, random.Random(2))
    ledger = Ledger(engine, A)
    whole = {visit.job.id for visit in TRAFFIC if visit.leaves is None}
    wrong = 0
    for row, text in alone.items():
        tokens = ledger.tokens.get(row, [])
        wrong += tokens != (text if row[0] in whole else text[: len(tokens)])
    return wrong


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    ("stages", "micro_batches"),
    [
        *[(1, 1), (2, 4), (4, 6)],
        *(pytest.param(*case, marks=pytest.mark.long) for case in LONG),
    ],
)
def test_every_text_is_that_of_one_stage(
    folder: Path, alone: Texts, kv_cache_dtype: str, stages: int, micro_batches: int, ahead: int
) -> None:
    runner = DecoderRunner(
        Stages(folder, num_stages=stages, backend="naive", kv_cache_dtype=kv_cache_dtype)
    )
    engine = engine_over(runner, folder, num_stages=stages, steps_ahead=ahead)
    scheduler = engine.core._scheduler
    assert isinstance(scheduler, DecoderScheduler)
    hope(scheduler)
    decided = scheduler._micro_batches
    decided._stages = decided._most = micro_batches
    # No row is large: beside those fewer micro-batches are in flight.
    scheduler._rows._of_a_job = 2
    assert differences(engine, alone) == 0
    assert runner.most_in_flight == decided.depth == micro_batches + ahead
    usage = scheduler.usage()
    assert usage.preemptions > 0
    assert usage.cached_tokens > 0
    assert usage.kv_blocks_used == 0


def too_early(message: DecodeStep) -> DecodeStep:
    """The first stage looks up tokens that have not come back."""
    return msgspec.structs.replace(message, after=-1)


def shifted(message: DecodeStep) -> DecodeStep:
    """Every tenth step puts its rows one position further."""
    starts = np.frombuffer(message.starts, np.int32) + int(message.step % 10 == 9)
    return msgspec.structs.replace(message, starts=starts.astype(np.int32).tobytes())


@pytest.mark.parametrize("mutation", [too_early, shifted])
def test_a_wrong_step_gives_another_text(folder: Path, alone: Texts, mutation: Mutation) -> None:
    runner = DecoderRunner(Stages(folder, num_stages=2, backend="naive"), mutation)
    assert differences(engine_over(runner, folder, num_stages=2), alone) > 0
