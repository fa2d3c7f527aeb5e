"""Completes a causal model that scores pairs: its template, and for a generator the ids of the
answer's tokens."""

import msgspec

from engine_core.tokenization.tokenizer import Tokenizer
from server.models.model_source import SetupError
from workers.contract.checkpoint.architectures import family_of
from workers.contract.config import AskedTask, LoadFormat
from workers.contract.model_config import ModelConfig
from workers.contract.reranking import RerankConfig, RerankTemplate, template_of_name


def with_template(
    model: ModelConfig,
    sources: tuple[str, ...],
    given: RerankTemplate | None,
    load: LoadFormat,
    asked: AskedTask | None = None,
) -> ModelConfig:
    """`model` with the template that is `given`, or that is known by the checkpoint's name, which
    is one of `sources`. Any other model as it is; so is a classifier whose template is not known,
    unless it is `asked` to rerank.

    Raises SetupError for a template that is missing, wrong or not for this model; TokenizerError.
    """
    classifies = family_of(model.architecture).task == "classify" and model.has_kv_cache
    declared = model.reranking
    if declared is None and not classifies:
        if given is not None:
            raise SetupError("rerank", f"{model.architecture} is not used as a reranker")
        return model
    template = given or next(filter(None, map(template_of_name, sources)), None)
    if template is None and classifies and asked != "rerank":
        return model
    if template is None:
        keys = "pieces, instruction" if classifies else "pieces, positive, negative, instruction"
        raise SetupError(
            "task",
            f"how {sources[0]} is asked to rerank is not known by its name; give its template as "
            f"rerank in the configuration file: {keys}",
        )
    if given is not None and (fault := given.fault() or _misplaced(given, classifies=classifies)):
        raise SetupError("rerank", fault)
    if declared is None:
        complete = RerankConfig(template=template)
    else:
        key = "task" if given is None else "rerank"
        complete = _of_generator(declared, Tokenizer.for_model(model, load), template, key)
    return msgspec.structs.replace(model, reranking=complete)


def _misplaced(template: RerankTemplate, *, classifies: bool) -> str | None:
    """What is wrong with the answers of a template for such a model."""
    if classifies and template.answers:
        return "positive and negative are for generators; this model's classifier gives the score"
    if not classifies and template.positive is None:
        return "positive is missing: the token whose logit is the score"
    return None


def _of_generator(
    declared: RerankConfig, tokenizer: Tokenizer, template: RerankTemplate, key: str
) -> RerankConfig:
    """Complete what a generator declares. Raises SetupError for setting `key`."""
    if declared.instruction is not None:
        if not template.takes_instruction:
            reason = f"the checkpoint's default prompt ({declared.instruction!r}) has no place"
            raise SetupError(key, reason)
        template = msgspec.structs.replace(template, instruction=declared.instruction)
    ids = _token_ids(tokenizer, template, key)
    if declared.token_ids not in ((), ids):
        spelled = " and ".join(map(repr, template.answers))
        raise SetupError(
            key,
            f"the tokens {spelled} have the ids {ids}, and the checkpoint's LogitScore module "
            f"names {declared.token_ids}",
        )
    return msgspec.structs.replace(declared, template=template, token_ids=ids)


def _token_ids(tokenizer: Tokenizer, template: RerankTemplate, key: str) -> tuple[int, ...]:
    ids: list[int] = []
    for text in template.answers:
        (encoding,) = tokenizer.encodings([text], add_special_tokens=False)
        if len(encoding.ids) != 1:
            reason = f"{text!r} has to be one token of this model; it is {len(encoding.ids)}"
            raise SetupError(key, reason)
        if tokenizer.decode(encoding.ids, skip_special_tokens=False).strip() != text.strip():
            raise SetupError(key, f"{text!r} is not in this model's vocabulary")
        ids += encoding.ids
    return tuple(ids)
