"""A tiny vocabulary that can spell JSON, and grammars over it."""

import json
import re

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from engine_core.messages import Grammar, SamplingParams
from engine_core.structured.grammar import GrammarCompiler
from engine_core.structured.matcher import Matcher
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.simulated_model import VOCAB, allowed_tokens, next_token

END = 44
PIECES = [*'0123456789abcdefxyz{}[]":,-.', "true", "null", '"a"', "12", "ab", "Ġ", "Ċ", '":']
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"enum": ["b", "cc", True]}, "maxItems": 3},
        "x": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["a", "x"],
    "additionalProperties": False,
}
CHOICES = ["ab", "abc", "d0", "f"]
GRAMMARS = [
    Grammar("choice", json.dumps(CHOICES), "choice"),
    Grammar("regex", "[0-9]{2,4}", "regex"),
    Grammar("regex", "[ab]+x?", "regex"),
    Grammar("json_schema", json.dumps(SCHEMA), "response_format"),
    Grammar("regex", "[a-z]{18,22}", "regex"),
]


def json_tokenizer() -> Tokenizer:
    """36 pieces of text, a few more for turns, and two special tokens: 46 ids of VOCAB's 50."""
    fillers = ["<y", "<", ">", *(f"z{i}" for i in range(END - len(PIECES) - 3))]
    raw = RawTokenizer(BPE({piece: i for i, piece in enumerate([*PIECES, *fillers])}, []))
    raw.pre_tokenizer = ByteLevel(add_prefix_space=False)
    raw.decoder = ByteLevelDecoder()
    raw.add_special_tokens([AddedToken(each, special=True) for each in ("<end>", "<c>")])
    assert raw.token_to_id("<end>") == END
    return Tokenizer(raw)


def matches(grammar: Grammar, text: str) -> bool:
    """Whether `text` matches, by another implementation."""
    match grammar.kind:
        case "choice":
            return text in json.loads(grammar.source)
        case "regex":
            return re.fullmatch(grammar.source, text) is not None
        case "json_schema" | "loose_json_schema":
            value = json.loads(text)
            items = all(item in ("b", "cc", True) for item in value["a"])
            return set(value) == {"a", "x"} and items and 0 <= value["x"] <= 99


def reference_within(
    compiler: GrammarCompiler, prompt: list[int], params: SamplingParams
) -> tuple[list[int], str]:
    """The tokens and the finish of a constrained request, computed alone."""
    assert params.grammar is not None
    assert params.max_tokens is not None
    matcher = Matcher(compiler.compile(params.grammar), params, VOCAB)
    mask = np.zeros(matcher.words, np.uint32)
    tokens = list(prompt)
    while len(tokens) < len(prompt) + params.max_tokens:
        matcher.state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        assert matcher.finish_mask(mask)
        tokens.append(next_token(tokens, allowed_tokens(mask)))
        assert matcher.accept(tokens[-1])
        if tokens[-1] in params.eos_token_ids or matcher.complete:
            return tokens[len(prompt) :], "stop"
    return tokens[len(prompt) :], "length"
