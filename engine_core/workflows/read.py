"""Prompts behind which the log-probabilities of given tokens are read."""

from array import array
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from engine_core.loop.admission import own_sizes, prompt_tokens
from engine_core.messages import Accepted, ReadJob, SamplingParams
from engine_core.refusal import RefusalError
from engine_core.schedulers.request import Request
from engine_core.tokenization.continuation import Piece
from engine_core.workflows.base import Prepared, RowLimit, check_vocabulary
from engine_core.workflows.tokenizer_threads import JobInputs, Text
from workers.contract.messages import LIKELIEST
from workers.contract.token_sampling import GREEDY

_NOT_CONTINUED = SamplingParams(sampling=GREEDY, max_tokens=0)


def texts_to_read(message: ReadJob, vocab_size: int) -> list[Text]:
    """The pieces to tokenize. Raises RefusalError for a job that names what does not exist."""
    prompts, count = message.prompts, len(message.pieces)
    if len(prompts) != len(message.tokens):
        reason = f"tokens are given for {len(message.tokens)} of {len(prompts)} prompts"
        raise RefusalError("invalid_request", reason, "tokens")
    for row, (prompt, ids) in enumerate(zip(prompts, message.tokens, strict=True)):
        if wrong := [piece for piece in prompt if not 0 <= piece < count]:
            param = f"prompts[{row}]"
            reason = f"{param} names piece {wrong[0]}; there are {count}"
            raise RefusalError("invalid_request", reason, param)
        param = f"tokens[{row}]"
        if not ids:
            raise RefusalError("invalid_request", f"{param} names no token to read", param)
        named = np.frombuffer(ids, np.int32)
        check_vocabulary(param, "names", named[named != LIKELIEST].tobytes(), vocab_size)
    later = {piece for prompt in prompts for piece in prompt[1:]}
    return [Piece(text, piece in later) for piece, text in enumerate(message.pieces)]


def rows_to_read(inputs: JobInputs, message: ReadJob, limit: RowLimit, vocab_size: int) -> Prepared:
    """The rows of a job whose pieces are tokenized. Raises RefusalError if one does not fit."""
    pieces, prompts = inputs.tokenized, message.prompts
    for number, piece in enumerate(pieces):
        check_vocabulary(f"pieces[{number}]", "holds", piece.ids, vocab_size)
    sizes = [piece.num_tokens for piece in pieces]
    lengths = [sum(sizes[piece] for piece in prompt) for prompt in prompts]
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        param = f"prompts[{row}]"
        if not length:
            raise RefusalError("invalid_request", f"{param} has no tokens", param)
        if length > limit.tokens:
            cut = any(pieces[piece].at_least for piece in prompt)
            raise limit.exceeded(param, f"at least {length}" if cut else f"{length}")

    def requests() -> Iterator[Request]:
        for row, own in enumerate(own_sizes(prompts, sizes)):
            ids = b"".join([pieces[piece].ids for piece in prompts[row]])
            yield Request(
                job=inputs.job,
                row=row,
                params=replace(_NOT_CONTINUED, logprob_token_ids=message.tokens[row]),
                tokens=array("i", ids),
                max_len=lengths[row],
                seed=0,
                read=True,
                shared=lengths[row] - max(own, 1),
            )

    accepted = Accepted(message.id, lengths, piece_tokens=sizes)
    return Prepared(requests(), prompt_tokens(message, accepted), accepted)
