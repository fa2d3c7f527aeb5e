"""`/v1/completions`: text that continues a prompt."""

from collections.abc import Sequence

from fastapi import Request, Response
from msgspec import UNSET, Struct
from msgspec.structs import replace

from server.api.declaration import answers
from server.generation.choice import TextPiece, absent
from server.generation.generation import Generation, TextForm, answer
from server.generation.plan import GenerationPlan, check_choices, choices, generation_plan
from server.generation.scores import ScoredToken, score_columns
from server.schemas.common import invalid, value_under_any_name
from server.schemas.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from server.service.endpoint import Endpoint, operation
from server.service.inputs import parse_items
from server.service.service import Model, service_of
from server.service.token_text import TokenIds
from server.settings.settings import Limits

DEFAULT_MAX_TOKENS = 16


@answers(
    Endpoint("POST", "/v1/completions", "OpenAI", tasks=("generate",), order=10),
    operation(Completion, CompletionRequest, chunk=Completion),
)
async def create_completion(request: Request, body: CompletionRequest, model: Model) -> Response:
    """Continue one or more prompts, in one answer or as a stream of server-sent events."""
    service = service_of(request)
    plan = completion_plan(body, model, service.limits)
    form = CompletionForm(body, model, service.new_id("cmpl"))
    return await answer(request, model, plan, form, stream=body.stream)


def completion_plan(body: CompletionRequest, model: Model, limits: Limits) -> GenerationPlan:
    """The request, checked and with the model's own defaults in it. Raises RefusalError."""
    newer, older = body.max_completion_tokens, body.max_tokens
    plan = generation_plan(
        body,
        model,
        width=_best_of(body, limits),
        max_tokens=value_under_any_name(("max_tokens", older), ("max_completion_tokens", newer)),
        default_max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=body.logprobs,
        echo=bool(body.echo),
        add_special_tokens=body.add_special_tokens is not False,
    )
    prompts = parse_items(body.prompt, "prompt", model, limits.max_inputs)
    return replace(plan, prompts=prompts)


def _best_of(body: CompletionRequest, limits: Limits) -> int:
    """How many choices of each prompt are generated. Raises RefusalError."""
    n = choices(body, limits)
    best_of = n if body.best_of is None else body.best_of
    check_choices(best_of, "best_of", limits)
    if best_of < n:
        raise invalid("best_of", f"{best_of} is less than n, {n}")
    if best_of > n and body.stream:
        raise invalid("best_of", "at most n with `stream`")
    return best_of


class CompletionForm(TextForm):
    """One answer of `/v1/completions`."""

    def __init__(self, body: CompletionRequest, model: Model, answer_id: str) -> None:
        super().__init__(body, model, answer_id, Completion)
        self._logprobs = body.logprobs
        self._width = max(body.logprobs or 0, len(body.logprob_token_ids or ()))
        self._text = TokenIds() if body.return_tokens_as_token_ids else model.token_text
        self._echo = bool(body.echo)

    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> Struct:
        choices = await self._choices(pieces)
        return replace(self._chunk, choices=choices, usage=generation.usage())

    async def _chunks(self, piece: TextPiece) -> Sequence[Struct]:
        choice = replace(
            await self.choice(piece),
            token_ids=absent(piece.token_ids),
            prompt_token_ids=absent(piece.prompt_ids),
            prompt_logprobs=UNSET,
        )
        return [replace(self._chunk, choices=[choice])]

    async def choice(self, piece: TextPiece) -> CompletionChoice:
        return CompletionChoice(
            index=piece.index,
            text=piece.echo + piece.text,
            logprobs=None if self._logprobs is None else await self._scores(piece),
            finish_reason=piece.finish_reason,
            token_ids=piece.token_ids,
            prompt_token_ids=piece.prompt_ids,
            prompt_logprobs=await self._scores_of_prompt(piece),
        )

    async def _scores(self, piece: TextPiece) -> CompletionLogprobs:
        """The tokens with their alternatives. The token itself is always among them."""
        tokens = [piece.prompt_tokens, piece.tokens] if self._echo else [piece.tokens]
        return CompletionLogprobs(
            *await score_columns(
                tokens,
                self._width,
                lambda some: [
                    [token.offset for token in some],
                    [token.logprob for token in some],
                    [self._text[token.id] for token in some],
                    [self._alternatives(token) for token in some],
                ],
            )
        )

    def _alternatives(self, token: ScoredToken) -> dict[str, float] | None:
        """Log-probabilities by the text of the token: the highest where several have the same."""
        if token.logprob is None:
            return None
        # A prompt's tokens may have more, for `prompt_logprobs`.
        top = token.top[: self._logprobs] if token.rank else token.top
        alternatives: dict[str, float] = {}
        for other, logprob in [*top, (token.id, token.logprob)]:
            text = self._text[other]
            alternatives[text] = max(logprob, alternatives.get(text, logprob))
        return alternatives
