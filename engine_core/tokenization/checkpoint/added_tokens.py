"""Adds the tokens that a checkpoint declares to the tokenizer that `tokenizer.json` describes."""

import msgspec
from tokenizers import AddedToken, Tokenizer

from engine_core.tokenization.checkpoint.class_rules import Declared
from engine_core.tokenization.checkpoint.special_tokens import DeclaredToken, DeclaredTokens
from engine_core.tokenization.checkpoint.tokenizer_classes import TokenizerClass
from workers.contract.model_config import ModelConfigError


def add_tokens(tokenizer: Tokenizer, declared: Declared, reader: TokenizerClass) -> None:
    """Add the tokens that tokenizer.json lacks, or has with other properties, in the order in which
    transformers does. Ids that would not be the declared ones are refused."""
    tokens = declared.tokens
    own = {each.content for each in tokenizer.get_added_tokens_decoder().values()}
    added = _changed(tokenizer, tokens)
    if reader.resets_special:
        _check_properties(added, declared)
    for token in (*tokens.special, *_usual(tokenizer, tokens, reader)):
        if token.content not in own:
            added.setdefault(token.content, _added(token))
    tokenizer.add_tokens(list(added.values()))  # pyright: ignore[reportUnknownMemberType]
    for index, token in tokens.by_id.items():
        if (actual := tokenizer.token_to_id(token.content)) != index:
            _refuse(f"{token.content} is {index}, and by tokenizer.json {actual}", declared)


def _changed(tokenizer: Tokenizer, tokens: DeclaredTokens) -> dict[str, AddedToken]:
    """The tokens with declared ids that tokenizer.json does not have so, by their texts."""
    own = {each.content: each for each in tokenizer.get_added_tokens_decoder().values()}
    named = {token.content for token in tokens.named.values() if token}
    changed = dict[str, AddedToken]()
    for _, token in sorted(tokens.by_id.items()):
        had, added = own.get(token.content), _added(token)
        if had is None or not (tokens.only_ids or repr(had) == repr(added)):
            added.special |= token.content in named
            changed[token.content] = added
    return changed


def _check_properties(changed: dict[str, AddedToken], declared: Declared) -> None:
    for token in declared.tokens.special:
        added = changed.get(token.content)
        if added is not None and (added.lstrip or added.rstrip or added.single_word):
            what = f"{token.content} is not supported with lstrip, rstrip or single_word"
            _refuse(what, declared)


def _usual(
    tokenizer: Tokenizer, tokens: DeclaredTokens, reader: TokenizerClass
) -> list[DeclaredToken]:
    """The class's own tokens, as far as they are in the vocabulary and not named otherwise."""
    texts = [text for name, text in reader.tokens.items() if name not in tokens.named]
    known = [text for text in texts if tokenizer.token_to_id(text) is not None]
    return [DeclaredToken(text, special=True) for text in known]


def _added(token: DeclaredToken) -> AddedToken:
    properties = msgspec.structs.asdict(token)
    given = {name: value for name, value in properties.items() if value is not None}
    return AddedToken(**given)


def _refuse(text: str, declared: Declared) -> None:
    declared.refuse(ModelConfigError(f"{declared.tokens.source}: {text}"))
