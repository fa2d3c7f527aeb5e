"""Traces: every step on every stage, for as long as somebody asks."""

from array import array

from engine_core.loop.reports import Tracer
from engine_core.messages import EncodeJob, GenerateJob, SamplingParams, Trace, TracedSteps
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.fake_transport import Engine
from workers.contract.messages import EncodeStep, StepTimes

A, B = b"client-a", b"client-b"


def pipeline(tokenizer: Tokenizer, architecture: str = "LlamaForCausalLM") -> Engine:
    blocks = 24 if architecture == "LlamaForCausalLM" else 0
    return Engine(tokenizer, architecture, blocks, num_stages=3, max_model_len=64)


def traced(engine: Engine, client: bytes) -> list[TracedSteps]:
    return [m for m in engine.clients.sent.get(client, []) if isinstance(m, TracedSteps)]


def is_over(engine: Engine, client: bytes) -> bool:
    return any(message.over for message in traced(engine, client))


def generate(engine: Engine, job: int, prompt: int, tokens: int) -> None:
    ids = [array("i", range(3, 3 + prompt)).tobytes()]
    params = SamplingParams(max_tokens=tokens)
    engine.clients.put(b"other", GenerateJob(job, params=params, ids=ids))


def test_every_step_with_its_rows_and_the_times_of_every_stage(word_tokenizer: Tokenizer) -> None:
    engine = pipeline(word_tokenizer)
    engine.clients.put(A, Trace(1.0))
    generate(engine, 1, prompt=5, tokens=4)
    engine.iterate_until(lambda: is_over(engine, A))
    steps = [step for message in traced(engine, A) for step in message.steps]
    assert [step.step for step in steps] == [0, 1, 2, 3]
    assert [(s.rows, s.tokens, s.prompt_tokens) for s in steps] == [(1, 5, 5)] + [(1, 1, 0)] * 3
    assert [step.context_tokens for step in steps] == [5, 6, 7, 8]
    for step in steps:
        assert [times.busy_us for times in step.times] == [1000, 1001, 1002]


def test_all_tokens_of_an_encoder_are_prompt_tokens(word_tokenizer: Tokenizer) -> None:
    engine = pipeline(word_tokenizer, "BertModel")
    engine.clients.put(A, Trace(1.0))
    ids = [array("i", [7] * n).tobytes() for n in (1, 4)]
    engine.clients.put(b"other", EncodeJob(1, ids=ids))
    engine.iterate_until(lambda: is_over(engine, A))
    steps = [step for message in traced(engine, A) for step in message.steps]
    assert sum(step.tokens for step in steps) == 5
    assert all(step.tokens == step.prompt_tokens == step.context_tokens for step in steps)


def test_a_trace_ends_after_its_seconds_and_another_goes_on(word_tokenizer: Tokenizer) -> None:
    engine = pipeline(word_tokenizer)
    engine.clients.put(A, Trace(0.5))
    engine.clients.put(B, Trace(1.5))
    engine.iterate_until(lambda: is_over(engine, A))
    assert not is_over(engine, B)
    generate(engine, 1, prompt=5, tokens=4)
    engine.iterate_until(lambda: is_over(engine, B))
    assert [len(message.steps) for message in traced(engine, A)] == [0, 0]
    assert sum(len(message.steps) for message in traced(engine, B)) == 4
    assert not engine.core._tracer._steps


def test_a_client_that_is_gone_is_traced_no_longer(word_tokenizer: Tokenizer) -> None:
    engine = pipeline(word_tokenizer)
    engine.clients.put(A, Trace(60.0))
    engine.clients.put(B, Trace(0.5))
    engine.clients.gone.add(A)
    engine.iterate_until(lambda: is_over(engine, B))
    generate(engine, 1, prompt=5, tokens=4)
    engine.iterate_until(lambda: engine.clients.outputs(b"other"))
    engine.iterate_until(lambda: not engine.core._jobs)
    assert engine.core._tracer._steps == []


def step(number: int) -> EncodeStep:
    return EncodeStep(step=number, tokens=bytes(4), query_lens=bytes(4))


def test_nothing_is_kept_for_nobody() -> None:
    tracer = Tracer()
    tracer.record(step(0), [StepTimes()], continued=False)
    tracer.start(A, 5.0, now=1.0)
    tracer.record(step(1), [StepTimes()], continued=False)
    ((client, message),) = tracer.take(2.0)
    assert (client, [step.step for step in message.steps]) == (A, [1])
    tracer.forget(A)
    tracer.record(step(2), [StepTimes()], continued=False)
    assert list(tracer.take(3.0)) == []
    assert tracer._steps == []


def test_seconds_and_steps_are_bounded() -> None:
    tracer = Tracer()
    tracer.start(A, 1e9, now=0.0)
    for number in range(10_050):
        tracer.record(step(number), [StepTimes()], continued=False)
    ((_, first),) = tracer.take(1.0)
    assert len(first.steps) == 10_000
    assert not first.over
    ((_, last),) = tracer.take(60.0)
    assert last == TracedSteps([], over=True)
