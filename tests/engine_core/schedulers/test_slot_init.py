"""The message with which a request gets its slot in the workers."""

from array import array

import msgspec
import numpy as np

from engine_core.loop.jobs import Job
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.schedulers.request import Request
from workers.contract.messages import SlotInit
from workers.contract.token_sampling import TokenBias, TokenSampling


def slot_init(params: SamplingParams, barred: bytes = b"") -> SlotInit:
    """The SlotInit of a request with three prompt tokens and two of output, encoded and decoded."""
    wire = msgspec.msgpack.Encoder().encode(GenerateJob(1, params=params))
    message = msgspec.msgpack.decode(wire, type=GenerateJob)
    job = Job(b"client", message, 1, 0)
    prompt = array("i", [5, 6, 5])
    request = Request(job, 0, message.params, prompt, max_len=20, seed=4, barred=barred)
    request.tokens.extend([9, 8])
    request.slot = 3
    return request.slot_init()


def test_known_tokens_are_sent_where_a_penalty_counts_them_and_only_there() -> None:
    unpenalised = TokenSampling(temperature=0.5, top_k=7, top_p=0.75, min_p=0.25)
    plain = slot_init(SamplingParams(sampling=unpenalised))
    assert (plain.sampling, plain.known_tokens, plain.bias) == (unpenalised, b"", TokenBias())
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        sampling = msgspec.structs.replace(TokenSampling(), **{name: 0.5})
        init = slot_init(SamplingParams(sampling=sampling))
        assert np.frombuffer(init.known_tokens, np.int32).tolist() == [5, 6, 5, 9, 8]
        assert (init.slot, init.prompt_len, init.sampling) == (3, 3, sampling)


def test_biases_and_what_must_not_come_early_travel_as_arrays() -> None:
    params = SamplingParams(logit_bias={7: -100.0, 2: 0.5}, min_tokens=4)
    init = slot_init(params, barred=array("i", [3, 1]).tobytes())
    assert np.frombuffer(init.bias.ids, np.int32).tolist() == [7, 2]
    assert np.frombuffer(init.bias.values, np.float32).tolist() == [-100.0, 0.5]
    assert (init.known_tokens, init.barred.min_tokens) == (b"", 4)
    assert np.frombuffer(init.barred.ids, np.int32).tolist() == [3, 1]
