"""The loop: admission, routing, and exactly one end for every admitted job."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.executor.stage_start import WorkerLostError
from engine_core.messages import (
    Abort,
    EncodeJob,
    EndRow,
    EngineInfo,
    Failed,
    GenerateJob,
    Hello,
    JobMessage,
    ResetCache,
    SamplingParams,
)
from tests.engine_core.fake_transport import Engine
from tests.engine_core.simulated_model import ids, reference

A, B = b"client-a", b"client-b"
idle = Engine.is_idle


class Ledger:
    """What a client has received, checked: everything arrives exactly once."""

    def __init__(self, engine: Engine, client: bytes = A) -> None:
        self.accepted: set[int] = set()
        self.failed: dict[int, Failed] = {}
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.finished: dict[tuple[int, int], str] = {}
        self.vectors: dict[tuple[int, int], np.ndarray] = {}
        for outputs in engine.clients.outputs(client):
            for accepted in outputs.accepted:
                assert accepted.id not in {*self.accepted, *self.failed}
                self.accepted.add(accepted.id)
            for row in outputs.rows:
                if row.token >= 0:
                    self.tokens.setdefault((row.job, row.row), []).append(row.token)
                self._row(row.job, row.row, row.finish)
            for part in outputs.encoded:
                rows = np.frombuffer(part.rows, np.int32)
                data = np.frombuffer(part.values, np.float32).reshape(len(rows), -1)
                for row, vector in zip(rows.tolist(), data, strict=True):
                    self._row(part.job, row, "stop")
                    self.vectors[part.job, row] = vector
            for failed in outputs.failed:
                assert failed.id not in self.failed
                self.failed[failed.id] = failed

    def _row(self, job: int, row: int, finish: str | None) -> None:
        assert job in self.accepted
        assert job not in self.failed
        assert (job, row) not in self.finished
        if finish is not None:
            self.finished[job, row] = finish


@pytest.fixture
def decoder(word_tokenizer) -> Engine:
    return Engine(word_tokenizer, "LlamaForCausalLM", num_blocks=24)


@pytest.fixture
def encoder(word_tokenizer) -> Engine:
    return Engine(word_tokenizer, "BertModel", num_blocks=0, max_model_len=16)


def served(engine: Engine, *jobs: GenerateJob | EncodeJob) -> Ledger:
    """What client A has received once these jobs are over."""
    engine.serve(*jobs)
    engine.assert_idle()
    return Ledger(engine)


class RandomLife:
    """Jobs of two clients that come, and are aborted, at random iterations."""

    def __init__(self, engine: Engine, data: st.DataObject) -> None:
        self._engine, self._data = engine, data
        self.aborted: set[tuple[bytes, int]] = set()

    def put(self, job: JobMessage) -> tuple[bytes, int]:
        """Its client and its number."""
        name = self._data.draw(st.sampled_from([A, B])), job.id
        self._engine.clients.put(name[0], job)
        self._engine.run(self._data.draw(st.integers(0, 3)))
        if self._data.draw(st.integers(0, 3)) == 0:
            self._engine.clients.put(name[0], Abort([job.id]))
            self.aborted.add(name)
        return name


def generate(job: int, *prompt: int, max_tokens: int | None = None, n: int = 1) -> GenerateJob:
    params = SamplingParams(max_tokens=max_tokens)
    return GenerateJob(job, params=params, ids=[ids(*prompt)], n=n)


def test_hello_is_answered_with_what_is_served(decoder: Engine) -> None:
    decoder.clients.put(A, Hello())
    decoder.iterate()
    info = decoder.clients.sent[A][0]
    assert isinstance(info, EngineInfo)
    assert info.task == "generate"
    assert info.kv_tokens == 24 * 4


def test_text_is_tokenized_and_rows_are_prompt_times_n(decoder: Engine) -> None:
    params = SamplingParams(max_tokens=3)
    ledger = served(decoder, GenerateJob(7, params=params, texts=["w1 w2", "w3"], n=2))
    assert decoder.clients.outputs(A)[0].accepted[0].prompt_tokens == [2, 1]
    assert ledger.tokens[7, 0] == ledger.tokens[7, 1] == reference([1, 2], 3)
    assert ledger.tokens[7, 2] == ledger.tokens[7, 3] == reference([3], 3)


def test_equal_ids_of_two_clients_do_not_meet(decoder: Engine) -> None:
    decoder.clients.put(B, generate(1, 5, max_tokens=2))
    assert served(decoder, generate(1, 4, max_tokens=2)).tokens[1, 0] == reference([4], 2)
    assert Ledger(decoder, B).tokens[1, 0] == reference([5], 2)


@pytest.mark.parametrize(
    ("job", "code", "param", "numbers"),
    [
        (generate(1, *range(10), max_tokens=90),
         "context_length_exceeded", "max_tokens", ("96", "10", "90")),
        (GenerateJob(1, params=SamplingParams(max_tokens=1), ids=[ids(1), ids(*([1] * 97))]),
         "context_length_exceeded", "prompt[1]", ("96", "97")),
        (generate(1, 50), "invalid_request", "prompt", ("50", "49")),
        (generate(1, -1), "invalid_request", "prompt", ("-1",)),
        (generate(1), "invalid_request", "prompt", ()),
        (GenerateJob(1, params=SamplingParams(), texts=[""]), "invalid_request", "prompt", ()),
        (generate(1, 1, n=65), "too_large", None, ("65", "64")),
        (generate(1, 1, n=0), "invalid_request", None, ()),
        (GenerateJob(1, params=SamplingParams()), "invalid_request", None, ()),
        (EncodeJob(1, ids=[ids(1)]), "invalid_request", None, ()),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_job_is_said_at_once(decoder, job, code, param, numbers) -> None:
    failed = served(decoder, job).failed[1]
    assert (failed.code, failed.param) == (code, param)
    assert all(number in failed.message for number in numbers)


def test_a_request_that_the_cache_just_holds_is_served(decoder: Engine) -> None:
    """96 tokens of cache, 256 of context: one more is refused, with the reason."""
    jobs = [generate(job, *range(10), max_tokens=length) for job, length in ((1, 86), (2, 87))]
    ledger = served(decoder, *jobs)
    assert ledger.tokens[1, 0] == reference(list(range(10)), 86)
    expected = (
        "this model's longest sequence in the KV cache is 96 tokens; "
        "prompt has 10 and 87 to generate"
    )
    assert (ledger.failed[2].message, ledger.failed[2].param) == (expected, "max_tokens")


def test_a_cache_reset_makes_the_next_request_compute_its_prompt(decoder: Engine) -> None:
    cached: list[int] = []
    for job in (1, 2, 3):
        served(decoder, generate(job, *[7] * 9, max_tokens=1))
        cached.append(decoder.clients.outputs(A)[-1].rows[0].cached)
        if job == 2:
            decoder.clients.put(A, ResetCache())
    assert cached == [0, 8, 0]


def test_a_full_engine_refuses_whole_jobs_and_recovers(decoder: Engine) -> None:
    decoder.executor.allowed = 0
    for job in range(8):  # each counts an eighth of what is admitted, 64 rows
        decoder.clients.put(A, generate(job, 1, max_tokens=2, n=60))
    decoder.clients.put(A, generate(8, 1, max_tokens=2))
    decoder.iterate()
    failed = Ledger(decoder).failed
    assert {job: failure.code for job, failure in failed.items()} == {7: "overloaded"}
    decoder.executor.allowed = 1_000_000
    served(decoder)
    assert len(served(decoder, generate(9, 1, max_tokens=2, n=64)).finished) == 7 * 60 + 1 + 64


def test_end_row_ends_one_row_and_the_last_one_the_job(decoder: Engine) -> None:
    decoder.executor.allowed = 3
    decoder.clients.put(A, generate(1, 1, max_tokens=30, n=2))
    decoder.run(6)
    for _ in range(2):
        decoder.clients.put(A, EndRow(1, 0))
    decoder.executor.allowed = 1_000_000
    ledger = served(decoder)
    assert set(ledger.finished) == {(1, 1)}
    assert ledger.tokens[1, 1] == reference([1], 30)
    assert len(ledger.tokens[1, 0]) < 30


def test_a_dead_client_is_aborted(decoder: Engine) -> None:
    decoder.clients.put(A, generate(1, 1, max_tokens=60))
    decoder.clients.gone.add(A)
    decoder.iterate()
    served(decoder)


def test_a_lost_worker_fails_every_open_job_before_the_loop_ends(decoder: Engine) -> None:
    decoder.clients.put(A, generate(1, 1, max_tokens=60, n=3))
    decoder.clients.put(B, generate(1, 1, max_tokens=60))
    decoder.run(3)
    decoder.executor.lost = True
    with pytest.raises(WorkerLostError):
        decoder.core.run()
    assert Ledger(decoder).failed[1].code == Ledger(decoder, B).failed[1].code == "engine_dead"


def test_vectors_come_back_by_row(encoder: Engine) -> None:
    items = [ids(*range(1, n + 1)) for n in (3, 12, 1, 12, 7)]
    encoder.clients.put(B, EncodeJob(1, texts=["w1 w2", "w5"]))
    ledger = served(encoder, EncodeJob(1, ids=items))
    assert [ledger.vectors[1, row][0] for row in range(5)] == [3, 12, 1, 12, 7]
    assert Ledger(encoder, B).vectors[1, 1].tolist() == [1, 5]


def test_a_row_that_is_not_finite_fails_its_job_alone(encoder: Engine) -> None:
    ledger = served(encoder, EncodeJob(1, ids=[ids(1), ids(13)]), EncodeJob(2, ids=[ids(2)]))
    assert ledger.failed[1].code == "row_failed"
    assert ledger.vectors[2, 0].tolist() == [1, 2]


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "BertModel"])
@settings(max_examples=40)
@given(data=st.data())
def test_every_accepted_request_gets_exactly_one_end(word_tokenizer, architecture, data) -> None:
    """Random jobs of two clients, good and bad, with aborts at random iterations."""
    decoding = architecture == "LlamaForCausalLM"
    stages = data.draw(st.integers(1, 3))
    engine = Engine(
        word_tokenizer, architecture, 24 if decoding else 0, num_stages=stages, max_model_len=64
    )
    rows: dict[tuple[bytes, int], int] = {}
    life = RandomLife(engine, data)
    for job_id in range(data.draw(st.integers(1, 12))):
        prompts = data.draw(
            st.lists(st.lists(st.integers(0, 50), max_size=12), min_size=1, max_size=3)
        )
        n = data.draw(st.integers(1, 3)) if decoding else 1
        params = SamplingParams(max_tokens=data.draw(st.none() | st.integers(0, 70)))
        as_ids = data.draw(st.booleans())
        token_ids = [ids(*prompt) for prompt in prompts] if as_ids else []
        texts = [] if as_ids else [" ".join(f"w{i}" for i in prompt) for prompt in prompts]
        job = (
            GenerateJob(job_id, params=params, texts=texts, ids=token_ids, n=n)
            if decoding
            else EncodeJob(job_id, texts=texts, ids=token_ids)
        )
        rows[life.put(job)] = len(prompts) * n
    engine.serve()
    for (client, job_id), count in rows.items():
        ledger = Ledger(engine, client)
        ended = sum(job == job_id for job, _ in ledger.finished)
        if (client, job_id) not in life.aborted:
            assert (job_id in ledger.failed) != (ended == count)
            assert (job_id in ledger.failed) == (job_id not in ledger.accepted) or ended < count
    engine.assert_idle()
