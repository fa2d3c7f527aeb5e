import msgspec
import pytest

from engine_core.refusal import RefusalError
from server.batches.batch_llm import BatchLLM
from server.batches.results import JobStoppedError, RequestError
from server.errors import error_body
from server.schemas.common import CompletionUsage, PromptTokensDetails
from server.schemas.completions import Completion, CompletionChoice
from tests.server.canned_server import CannedServer, answer

TOO_LONG = answer(error_body(RefusalError("context_length_exceeded", "no")), "400 Bad Request")


def test_a_server_that_hangs_up_stops_the_job_with_what_is_done() -> None:
    with (
        CannedServer([b"HTTP/1.1 200 OK\r\n"], cut=True) as server,
        BatchLLM(url=server.url, progress=False) as llm,
        pytest.raises(JobStoppedError, match="does not answer") as raised,
    ):
        llm.generate(["a", "b", [{}]])  # pyright: ignore[reportArgumentType]
    *lost, refused = raised.value.results
    assert lost == [None, None]
    assert isinstance(refused, RequestError)


def test_a_refused_text_is_told_from_its_neighbours() -> None:
    with (
        CannedServer([TOO_LONG]) as server,
        BatchLLM("m", url=server.url, progress=False) as llm,
    ):
        assert llm.embed(["a", "b"]).shape == (2, 0)
        assert [error.code for error in llm.errors.values()] == ["context_length_exceeded"] * 2
        assert len(server.requests) == 3, "both, then each"


def test_a_daemon_gets_ordinary_requests_and_results_are_in_order() -> None:
    choice = CompletionChoice(index=0, text="!", logprobs=None, finish_reason="stop")
    usage = CompletionUsage(5, 1, 6, PromptTokensDetails(4))
    completion = Completion(
        id="", created=0, model="m", system_fingerprint="fp_1", choices=[choice], usage=usage
    )
    prompts = [f"{number:03}" for number in reversed(range(200))]
    with (
        CannedServer([answer(msgspec.json.encode(completion))]) as server,
        BatchLLM("m", url=server.url, progress=False) as llm,
    ):
        llm.generate(prompts, max_tokens=3)
        bodies = [msgspec.json.decode(body) for body in server.requests]
    assert bodies[0].keys() == {"model", "prompt", "max_tokens", "return_token_ids"}
    sent = [body["prompt"] for body in bodies]
    assert sorted(sent) == sorted(prompts)
    # 64 are under way at once: the first 32 to come are among the first 95 that were sent.
    assert max(map(int, sent[:32])) < 95
    summary = llm.summary
    assert (summary.saved_tokens, summary.saved_share) == (800, 0.8)
    assert summary.sharing == "by whole blocks"
