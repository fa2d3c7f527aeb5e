"""An engine core and its worker on the GPU, as processes: what many requests leave behind, and what
it refuses."""

import asyncio
import gc
import json
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_core.client.engine_client import EngineClient
from engine_core.messages import Grammar, SamplingParams
from engine_core.refusal import RefusalError
from engine_core.tokenization.continuation import Piece, tokenize_each
from engine_core.tokenization.tokenizer import Tokenizer
from server.daemon.run import running_engine
from server.models.model_setup import EngineOptions
from tests.e2e.endurance import Footprint, Guests, footprint, until_idle
from tests.gpu.conftest import run
from tests.workers.equivalence import DEMO
from workers.contract.token_sampling import GREEDY, TokenSampling

pytestmark = pytest.mark.gpu

BLOCK = 64
DEMO_BLOCK_BYTES = 2 * 5 * BLOCK * 4 * 32 * 2
"""Keys and values of five layers, four heads of 32, in bfloat16."""

SETTLED, REQUESTS = 2000, 10_000
GROWTH = {"engine_core": 4 << 20, "workers": 16 << 20, "device": 32 << 20}
"""Bytes that may come between request SETTLED and the last. The device's is about one segment of
torch's allocator, for a step that is larger than any before."""

SCHEMA = {
    "type": "object",
    "properties": {
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "mode": {"enum": ["fast", "safe"]},
    },
    "required": ["port", "mode"],
    "additionalProperties": False,
}


def options(**changes: Any) -> EngineOptions:
    """On the GPU, without the time that choosing a backend takes."""
    given: dict[str, Any] = {
        "device": "cuda",
        "attention_backend": "triton",
        "block_size": 64,
        "log_level": "warning",
    }
    return EngineOptions(**given | changes)


def memory() -> Footprint:
    free, total = torch.cuda.mem_get_info()
    return footprint(total - free)


def test_ten_thousand_requests_leave_nothing_behind() -> None:
    gc.collect()  # what other tests have left of ours must not go meanwhile
    torch.cuda.empty_cache()

    async def serve() -> None:
        given = options(kv_cache_memory=500 * DEMO_BLOCK_BYTES, max_running=96)
        async with running_engine(DEMO, given) as engine:
            guests = Guests(engine.client, engine.model.execution.model.vocab_size)
            await guests.serve(SETTLED)
            await until_idle(engine.client)
            earlier = memory()
            await guests.serve(REQUESTS - SETTLED)
            await until_idle(engine.client)
            growth = memory().growth_since(earlier)
            mib = {name: round(size / (1 << 20), 2) for name, size in growth.items()}
            print(f"growth in MiB over {REQUESTS - SETTLED} requests: {mib}; {engine.client.beat}")
            assert guests.finished + guests.left == REQUESTS
            assert guests.left > REQUESTS / 20
            assert engine.client.beat is not None
            assert engine.client.beat.usage.kv_blocks_total == 500
            assert engine.client.beat.usage.cached_tokens > 0
            assert {name for name, size in growth.items() if size > GROWTH[name]} == set(), mib

    run(serve(), 150)


async def tokens_of(client: EngineClient, prompt: int, **params: Any) -> list[int]:
    """The tokens of one request whose prompt is `prompt` tokens long."""
    tokens: list[int] = []
    ids = np.full(prompt, 9, np.int32).tobytes()
    sampling = SamplingParams(**{"sampling": GREEDY, "ignore_eos": True} | params)
    with await client.generate(sampling, ids=[ids]) as stream:
        while news := await stream.next():
            tokens += [output.token for output in news if output.token >= 0]
    return tokens


def test_what_does_not_fit_the_cache_is_refused_with_the_numbers() -> None:
    async def ask() -> None:
        async with running_engine(DEMO, options(kv_cache_memory=2 * DEMO_BLOCK_BYTES)) as engine:
            client = engine.client
            assert len(await tokens_of(client, 100, max_tokens=28)) == 28
            with pytest.raises(RefusalError) as one_more:
                await tokens_of(client, 100, max_tokens=29)
            with pytest.raises(RefusalError) as too_long:
                await tokens_of(client, 128)
            assert one_more.value.code == too_long.value.code == "context_length_exceeded"
            assert one_more.value.param == "max_tokens"
            expected = (
                "this model's longest sequence in the KV cache is 128 tokens; "
                "prompt has 100 and 29 to generate"
            )
            assert one_more.value.message == expected
            assert "KV cache is 128 tokens; prompt has 128" in too_long.value.message
            assert len(await tokens_of(client, 127)) == 1
            await until_idle(client)

    run(ask(), 90)


async def structured(client: EngineClient, seed: int) -> str:
    """The text of a sampled answer that must follow SCHEMA."""
    grammar = Grammar("json_schema", json.dumps(SCHEMA), "response_format")
    sampling = TokenSampling(temperature=1.3)
    params = {"sampling": sampling, "seed": seed, "max_tokens": 100, "grammar": grammar}
    stops = frozenset({1, 5})
    tokens = await tokens_of(client, 20 + seed, eos_token_ids=stops, ignore_eos=False, **params)
    return Tokenizer.load(DEMO).decode(tokens)


def test_grammars_hold_beside_rows_that_are_free_in_a_cache_that_was_measured() -> None:
    async def ask() -> None:
        async with running_engine(DEMO, options(attention_backend="auto")) as engine:
            given = engine.model.execution
            info = await engine.client.wait_ready()
            assert info.kv_tokens == given.max_running * given.max_model_len
            texts, free = await asyncio.gather(
                asyncio.gather(*(structured(engine.client, seed) for seed in range(24))),
                asyncio.gather(*(tokens_of(engine.client, n, max_tokens=50) for n in range(1, 25))),
            )
            assert [len(tokens) for tokens in free] == [50] * 24
            values = [json.loads(text) for text in texts]
            assert all(list(value) == ["port", "mode"] for value in values)
            assert all(1 <= value["port"] <= 65535 for value in values)
            assert all(value["mode"] in ("fast", "safe") for value in values)
            assert len(set(texts)) > 12
            await until_idle(engine.client)

    run(ask(), 150)


TEXT = "The gate opens, water falls, and the turbine turns. " * 20
QUESTIONS = [f"Is the gate {word} today?" for word in "open closed old new red up down".split()]
READ = np.array([7, 300, 11, 42], np.int32)


def expected_logs() -> np.ndarray:
    """[questions, tokens] by transformers on the CPU."""
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    pieces = [Piece(TEXT, continues=False), *(Piece(text, continues=True) for text in QUESTIONS)]
    before, *behind = [each.ids for each in tokenize_each(Tokenizer.load(DEMO), pieces)]
    ids = [torch.from_numpy(np.frombuffer(before + own, np.int32).copy()).long() for own in behind]
    with torch.no_grad():
        logits = [model(row[None]).logits[0, -1] for row in ids]
    return np.array([logit.log_softmax(-1)[READ.tolist()].numpy() for logit in logits])


@pytest.mark.parametrize("backend", ["triton", "sdpa"])
def test_tokens_behind_questions_are_read_as_transformers_reads_them(backend: str) -> None:
    """In any company, and with the input in the cache."""

    async def read(client: EngineClient, questions: list[str]) -> np.ndarray:
        prompts = [(0, number) for number in range(1, len(questions) + 1)]
        tokens = [READ.tobytes()] * len(questions)
        found = await client.read(pieces=[TEXT, *questions], prompts=prompts, tokens=tokens)
        return np.array(found.values)

    async def ask() -> None:
        given = options(dtype="float32", attention_backend=backend)
        async with running_engine(DEMO, given) as engine:
            together = await read(engine.client, QUESTIONS)
            alone = [await read(engine.client, [text]) for text in QUESTIONS[:5]]
            assert together == pytest.approx(expected_logs(), abs=1e-4)
            assert np.concatenate(alone) == pytest.approx(together[:5], abs=1e-5)

    run(ask(), 90)


NAMED = [READ.tobytes(), b"", READ[1:2].tobytes(), np.arange(100, 228, dtype=np.int32).tobytes()]


async def generated(
    client: EngineClient, number: int, named: bytes
) -> tuple[list[int], np.ndarray]:
    """The prompt and the tokens of one request, and the log-probabilities of the `named` tokens, or
    of the likeliest, [tokens, named]."""
    prompt = [(9 + number * at) % 1000 for at in range(1, 40 + number)]
    params = SamplingParams(
        max_tokens=20, ignore_eos=True, seed=number, logprobs=1, logprob_token_ids=named
    )
    tokens, rows = list[int](), list[np.ndarray]()
    with await client.generate(params, ids=[np.array(prompt, np.int32).tobytes()]) as stream:
        while news := await stream.next():
            for output in news:
                assert output.sampled is not None
                assert not named or output.sampled.top_ids == named
                tokens.append(output.token)
                rows.append(np.frombuffer(output.sampled.top, np.float32)[: len(named) // 4 or 1])
    return prompt + tokens, np.array(rows)


@pytest.mark.parametrize("backend", ["triton", "sdpa"])
def test_named_tokens_have_the_log_probabilities_of_transformers(backend: str) -> None:
    """Beside rows with other lists, and without."""
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)

    async def ask() -> None:
        given = options(dtype="float32", attention_backend=backend)
        async with running_engine(DEMO, given) as engine:
            lists = [NAMED[number % len(NAMED)] for number in range(24)]
            work = (generated(engine.client, *each) for each in enumerate(lists))
            for named, (tokens, found) in zip(lists, await asyncio.gather(*work), strict=True):
                assert len(found) == 20
                with torch.no_grad():
                    logits = model(torch.tensor([tokens])).logits[0, -21:-1]
                exact = logits.log_softmax(-1).numpy()
                ids = np.frombuffer(named, np.int32)
                wanted = exact[:, ids] if named else exact.max(axis=1, keepdims=True)
                assert found == pytest.approx(wanted, abs=1e-4)

    run(ask(), 90)
