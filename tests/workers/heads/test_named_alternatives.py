"""Log-probabilities of tokens that requests name are those of transformers, in any batch."""

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_core.messages import Failed, GenerateJob, JobMessage, ReadJob, RowOutput, SamplingParams
from tests.engine_core.driver import hope
from tests.engine_core.fake_transport import Engine
from tests.engine_core.simulated_model import ids
from tests.engine_core.test_core import A
from tests.workers.checkpoints import LLAMA, save_llama
from tests.workers.contract.checkpoint.library_folders import write_word_tokenizer
from tests.workers.stage.encoding_engine import start_engine
from tests.workers.staged_engine import Visit, serve
from tests.workers.stages import Stages
from workers.contract.messages import Logprobs
from workers.contract.token_sampling import GREEDY, TokenSampling

VOCABULARY: int = LLAMA["vocab_size"]
TOLERANCE = 1e-4
DRAW = random.Random(7)


def some(count: int) -> list[int]:
    return DRAW.sample(range(2, VOCABULARY), count)


FEW, MANY, ONE = some(3), some(60), some(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generator")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    model = save_llama(folder)
    words = [*(f"w{number}" for number in range(VOCABULARY - 2)), "<unk>", "<end>"]
    write_word_tokenizer(folder, words, "$A <end>", {"unk_token": "<unk>", "eos_token": "<end>"})
    return model


@pytest.fixture(scope="module")
def stages(folder: Path, model: Any) -> dict[int, Stages]:
    return {count: Stages(folder, num_stages=count) for count in (1, 2)}


def job(number: int, named: Sequence[int] = (), n: int = 1, length: int = 9, **params: Any) -> Any:
    """A job of one prompt whose tokens are drawn, and reported beside `named` ones."""
    given: dict[str, Any] = {"sampling": TokenSampling(temperature=1.5), "max_tokens": 6}
    given |= {"logprobs": 0, "seed": number, "ignore_eos": True}
    own = SamplingParams(**given | params, logprob_token_ids=ids(*named))
    return GenerateJob(number, ids=[ids(*some(length))], n=n, params=own)


def answers(engine: Engine, *jobs: JobMessage) -> dict[int, dict[int, list[RowOutput]]]:
    """Each job's rows: their outputs with a token."""
    rows: dict[int, dict[int, list[RowOutput]]] = defaultdict(lambda: defaultdict(list))
    with torch.inference_mode():
        serve(engine, [Visit(each, at % 3) for at, each in enumerate(jobs)], random.Random(1))
    for outputs in engine.clients.outputs(A):
        assert not outputs.failed
        for output in outputs.rows:
            if output.token >= 0:
                rows[output.job][output.row].append(output)
    engine.assert_idle()
    return rows


def alternatives(sampled: Logprobs) -> tuple[list[int], np.ndarray]:
    assert len(sampled.chosen) == 4
    assert len(sampled.top) == len(sampled.top_ids) == 4 * sampled.width
    return np.frombuffer(sampled.top_ids, np.int32).tolist(), np.frombuffer(sampled.top, np.float32)


def check(model: Any, message: GenerateJob, rows: dict[int, list[RowOutput]]) -> None:
    """Every row has what transformers computes: of the named tokens, or of the likeliest."""
    named = np.frombuffer(message.params.logprob_token_ids, np.int32).tolist()
    assert sorted(rows) == list(range(message.n))
    prompt = np.frombuffer(message.ids[0], np.int32).tolist()
    for outputs in rows.values():
        tokens = [output.token for output in outputs]
        assert len(tokens) == message.params.max_tokens
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
        for output, exact in zip(outputs, logits.log_softmax(-1).numpy(), strict=True):
            if message.params.logprobs is None:
                assert output.sampled is None
                continue
            assert output.sampled is not None
            found, values = alternatives(output.sampled)
            assert found[: len(named)] == named
            assert not named or len(found) == len(named)
            assert np.abs(values - exact[found]).max(initial=0) < TOLERANCE
            chosen = np.frombuffer(output.sampled.chosen, np.float32)
            assert abs(chosen[0] - exact[output.token]) < TOLERANCE
            if not named:
                best = np.sort(exact)[::-1][: message.params.logprobs]
                assert np.allclose(values[: len(best)], best, atol=TOLERANCE)


@pytest.mark.parametrize(("num_stages", "steps_ahead"), [(1, 0), (1, 1), (2, 1)])
def test_values_are_those_of_transformers_in_any_batch(
    folder: Path, model: Any, stages: dict[int, Stages], num_stages: int, steps_ahead: int
) -> None:
    """Lists of other lengths beside, none at all, likeliest tokens, and prompts that are read."""
    jobs = [
        job(1, FEW, n=3),
        job(2, logprobs=4),
        job(3, MANY, sampling=GREEDY, max_tokens=11),
        job(4, logprobs=None),
        job(5, ONE, allowed_token_ids=frozenset(ONE), logprobs=2),
        job(6, FEW[::-1], length=50, logit_bias={FEW[0]: 50.0}),
        job(7, FEW, logprobs=None),
    ]
    read = ReadJob(9, pieces=["w5 w6"], prompts=[(0,)] * 2, tokens=[ids(*MANY), ids(*ONE)])
    engine = start_engine(folder, stages[num_stages], steps_ahead=steps_ahead, max_step_tokens=32)
    found = answers(engine, *jobs[:4], read, *jobs[4:])
    for each in jobs:
        check(model, each, found[each.id])
    parts = [part for outputs in engine.clients.outputs(A) for part in outputs.encoded]
    values = np.frombuffer(b"".join(part.values for part in parts), np.float32)
    with torch.inference_mode():
        exact = model(torch.tensor([[5, 6]])).logits[0, -1].float().log_softmax(-1).numpy()
    rows = np.frombuffer(b"".join(part.rows for part in parts), np.int32).tolist()
    read_ids = [token for row in rows for token in (MANY, ONE)[row]]
    assert np.allclose(values, exact[read_ids], atol=TOLERANCE)


def test_what_is_preempted_is_reported_as_before(
    folder: Path, model: Any, stages: dict[int, Stages]
) -> None:
    engine = start_engine(folder, stages[1])
    hope(engine.core._scheduler)
    lists = (FEW, [], MANY, ONE)
    jobs = [job(number, lists[number % 4], length=20, max_tokens=220) for number in range(8)]
    found = answers(engine, *jobs)
    assert engine.core._scheduler.usage().preemptions > 0
    for each in jobs:
        check(model, each, found[each.id])


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**31 - 1])
def test_a_token_that_is_none_is_refused_by_name(
    folder: Path, stages: dict[int, Stages], token: int
) -> None:
    engine = start_engine(folder, stages[1])
    engine.clients.put(A, job(1, [*FEW, token]))
    failed: list[Failed] = []
    while not failed:
        engine.iterate()
        failed = [each for outputs in engine.clients.outputs(A) for each in outputs.failed]
    assert failed[0].param == "logprob_token_ids"
    assert str(token) in failed[0].message
