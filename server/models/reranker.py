"""Completes a causal model that scores pairs: its template, and the ids of the answer's tokens."""

import msgspec

from engine_core.tokenization.tokenizer import Tokenizer
from server.models.setup_error import SetupError
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfig
from workers.contract.reranking import RerankTemplate, template_of_name


def with_template(
    model: ModelConfig, sources: tuple[str, ...], given: RerankTemplate | None, load: LoadFormat
) -> ModelConfig:
    """`model` with the template that is `given`, or that is known by the checkpoint's name, which
    is one of `sources`. Any other model as it is.

    Raises SetupError for a template that is missing, wrong or not for this model; TokenizerError.
    """
    declared = model.reranking
    if declared is None:
        if given is not None:
            raise SetupError("rerank", f"{model.architecture} is not used as a reranker")
        return model
    template = given or next(filter(None, map(template_of_name, sources)), None)
    if template is None:
        raise SetupError(
            "task",
            f"how {sources[0]} is asked to rerank is not known by its name; give its template as "
            "rerank in the configuration file: pieces, positive, negative, instruction",
        )
    key = "task" if given is None else "rerank"
    if fault := template.fault():
        raise SetupError(key, fault)
    if declared.instruction is not None:
        if not template.takes_instruction:
            reason = f"the checkpoint's default prompt ({declared.instruction!r}) has no place"
            raise SetupError(key, reason)
        template = msgspec.structs.replace(template, instruction=declared.instruction)
    ids = _token_ids(Tokenizer.for_model(model, load), template, key)
    if declared.token_ids not in ((), ids):
        raise SetupError(
            key,
            f"the tokens {_spelled(template)} have the ids {ids}, and the checkpoint's LogitScore "
            f"module names {declared.token_ids}",
        )
    complete = msgspec.structs.replace(declared, template=template, token_ids=ids)
    return msgspec.structs.replace(model, reranking=complete)


def _token_ids(tokenizer: Tokenizer, template: RerankTemplate, key: str) -> tuple[int, ...]:
    ids: list[int] = []
    for text in _answers(template):
        (encoding,) = tokenizer.encodings([text], add_special_tokens=False)
        if len(encoding.ids) != 1:
            reason = f"{text!r} has to be one token of this model; it is {len(encoding.ids)}"
            raise SetupError(key, reason)
        if tokenizer.decode(encoding.ids, skip_special_tokens=False).strip() != text.strip():
            raise SetupError(key, f"{text!r} is not in this model's vocabulary")
        ids += encoding.ids
    return tuple(ids)


def _answers(template: RerankTemplate) -> list[str]:
    return [text for text in (template.positive, template.negative) if text is not None]


def _spelled(template: RerankTemplate) -> str:
    return " and ".join(map(repr, _answers(template)))
