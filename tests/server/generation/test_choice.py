"""One row's text pieces and where their tokens begin."""

from types import SimpleNamespace
from typing import Any

from engine_core.messages import RowOutput, SamplingParams
from engine_core.tokenization.tokenizer import Tokenizer
from server.generation.choice import Choice, Prompt
from server.generation.plan import GenerationPlan
from server.service.inputs import text_items
from tests.server.fake_engine import logprobs_of

PROMPT, CONTINUATION = "Water falls", " over the dam"


def echoing_choices(tokenizer: Tokenizer, n: int = 1) -> list[Choice]:
    """Their text begins with PROMPT, and all tokens get their log-probabilities."""
    model: Any = SimpleNamespace(tokenizer=tokenizer)
    plan = GenerationPlan(
        prompts=text_items(PROMPT, "prompt"),
        n=n,
        width=n,
        params=SamplingParams(logprobs=0, prompt_logprobs=0),
        stops=(),
        logprobs=0,
        echo=True,
    )
    (ids,) = tokenizer.encode([PROMPT])
    prompt = Prompt(model, plan, 0, ids)
    return [Choice(index, prompt, model, plan) for index in range(n)]


def updates(tokenizer: Tokenizer) -> list[RowOutput]:
    """The prompt's log-probabilities from two steps, then each token of CONTINUATION from one."""
    prompt = tokenizer.raw.encode(PROMPT).ids[1:]  # nothing scores the first token
    tokens = tokenizer.raw.encode(CONTINUATION, add_special_tokens=False).ids
    assert len(prompt) > 1
    return [
        *(RowOutput(0, 0, scored=logprobs_of(part, 0)) for part in (prompt[:1], prompt[1:])),
        *(RowOutput(0, 0, token, sampled=logprobs_of([token], 0)) for token in tokens),
    ]


def test_streamed_offsets_go_on_behind_a_prompt_scored_in_several_steps(tokenizer):
    (choice,) = echoing_choices(tokenizer)
    pieces = []
    for update in updates(tokenizer):
        choice.apply(update)
        pieces.append(choice.next_piece())
    pieces = [piece for piece in pieces if piece is not None]
    text = "".join(piece.echo + piece.text for piece in pieces)
    assert text == PROMPT + CONTINUATION
    assert pieces[0].echo == PROMPT, "a piece of its own, before any sampled token"
    assert not pieces[0].tokens
    sampled = [token for piece in pieces for token in piece.tokens]
    assert sampled[0].offset == len(PROMPT)
    scored = [token for piece in pieces for token in piece.prompt_tokens]
    for token in [*scored[1:], *sampled]:
        assert text.startswith(tokenizer.decode([token.id]), token.offset)
