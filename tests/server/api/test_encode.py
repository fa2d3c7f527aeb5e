"""Cutting texts beside a query: in the server's arithmetic and in the engine's threads."""

import select

import numpy as np
import pytest

from engine_core.client.engines import Engines
from engine_core.loop.jobs import Job
from engine_core.messages import EncodeJob
from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.tokenizer_threads import TokenizerThreads
from server.api.encode import texts_cut_to
from server.service.service import Model
from tests.server.conftest import DeploymentBuilder

QUERY, TEXT = "Water falls from the gate", "and the turbine turns over the lazy dog " * 20
MODEL_LEN = 2048


@pytest.fixture
def model(builder: DeploymentBuilder, tokenizer: Tokenizer) -> Model:
    served = builder.model("ranker", "classify")
    return Model(served, tokenizer, Engines.of(served.engines))


def count(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.raw.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("query", [QUERY, None])
@pytest.mark.parametrize("limit", [1, 7])
async def test_a_text_keeps_so_many_tokens_of_its_own(
    model: Model, tokenizer: Tokenizer, query: str | None, limit: int, side
) -> None:
    tokenization = await texts_cut_to(model, limit, query=query, side=side)
    threads = TokenizerThreads(tokenizer, 512)
    job = Job(b"", EncodeJob(1, tokenization=tokenization), 1, 0)
    threads.put(job, [TEXT if query is None else (query, TEXT)])
    assert select.select([threads.fileno()], [], [], 10)[0]
    ((done,),) = [finished.tokenized for finished in threads.take()]
    ids = np.frombuffer(done.ids, np.int32).tolist()
    whole = tokenizer.raw.encode(TEXT, add_special_tokens=False).ids
    before = [0] if query is None else tokenizer.raw.encode(query, "").ids
    assert ids == before + (whole[:limit] if side == "right" else whole[-limit:])
    assert done.dropped == len(whole) - limit


async def test_no_text_is_longer_than_the_model_takes(model: Model, tokenizer: Tokenizer) -> None:
    assert (await texts_cut_to(model, 2**31 - 1)).truncate_to == MODEL_LEN
    assert (await texts_cut_to(model, 2**31 - 1, query=QUERY)).truncate_to == MODEL_LEN
    own = count(tokenizer, QUERY)
    assert (await texts_cut_to(model, 5, query=QUERY)).truncate_to == 1 + own + 1 + 5


async def test_a_query_that_leaves_no_room_is_named(model: Model, tokenizer: Tokenizer) -> None:
    query = "dog " * 3000
    with pytest.raises(RefusalError) as raised:
        await texts_cut_to(model, 5, query=query)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "query")
    assert str(count(tokenizer, query) + 2) in raised.value.message
    assert str(MODEL_LEN) in raised.value.message
