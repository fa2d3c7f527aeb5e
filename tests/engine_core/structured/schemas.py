"""Schemas compiled over the demo model's vocabulary, and which texts they allow."""

import json
from typing import Any

import numpy as np

from engine_core.messages import Grammar, GrammarKind, SamplingParams
from engine_core.structured.grammar import CompiledGrammar, GrammarCompiler
from engine_core.structured.matcher import Matcher
from engine_core.tokenization.tokenizer import Tokenizer
from server.demo import GENERATOR_NAME, demo_models

TOKENIZER = Tokenizer.load(demo_models()[GENERATOR_NAME])
COMPILER = GrammarCompiler(TOKENIZER, 4096)


def compiled(schema: Any, kind: GrammarKind = "json_schema") -> CompiledGrammar:
    return COMPILER.compile(Grammar(kind, json.dumps(schema), "response_format"))


def next_tokens(matcher: Matcher) -> list[int]:
    """The tokens that the grammar allows next, and its own end."""
    mask = np.zeros(matcher.words, np.uint32)
    matcher.state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def ids_of(text: str) -> list[int]:
    (ids,) = TOKENIZER.encode([text], add_special_tokens=False)
    return np.frombuffer(ids, np.int32).tolist()


def allows(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the whole text matches."""
    state = Matcher(grammar, SamplingParams(), 4096).state
    return all(map(state.consume_token, ids_of(text))) and state.is_accepting()


def fits(schema: Any, value: Any) -> bool:
    return allows(compiled(schema), json.dumps(value))
