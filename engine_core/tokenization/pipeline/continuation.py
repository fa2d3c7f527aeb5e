"""The tokenizer for what continues a text: it puts nothing before it."""

from tokenizers import Tokenizer

from engine_core.tokenization.pipeline.rules import PipelineRules, Rule


def continuing(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with the same model and rules, but for those that put a space before a text;
    `tokenizer` itself where there are none.

    Such rules also put a space behind an added token, which this tokenizer does not.
    """
    rules = PipelineRules.of(tokenizer)
    if (without := rules.changed(_without_prefix)) == rules:
        return tokenizer
    other = Tokenizer(tokenizer.model)
    without.put_into(other)
    added = tokenizer.get_added_tokens_decoder()
    other.add_tokens([added[token] for token in sorted(added)])  # pyright: ignore[reportUnknownMemberType]
    return other


def _without_prefix(rule: Rule) -> Rule:
    if rule["type"] == "Prepend":
        return {}
    if rule["type"] == "Metaspace":
        return rule | {"prepend_scheme": "never"}
    return rule | {"add_prefix_space": False} if "add_prefix_space" in rule else rule
