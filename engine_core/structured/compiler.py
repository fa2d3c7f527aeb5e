"""Compiles what a text must match: a grammar, or the rules of a turn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from engine_core.messages import Grammar, ToolRules, TurnRules
from engine_core.structured.grammar import CompiledGrammar, GrammarCompiler
from engine_core.structured.lark_rules import LarkRules
from engine_core.structured.schema_tree import GrammarError
from engine_core.structured.turn_grammar import CallableTool, SectionGrammar
from engine_core.structured.turn_matcher import CompiledTurn, Section, TokenBytes
from engine_core.tokenization.tokenizer import TOKENIZER_FILE, Tokenizer
from engine_core.turn_format import CallFormat
from workers.contract.config import ExecutionConfig

Rules = Grammar | TurnRules
Compiled = CompiledGrammar | CompiledTurn
Compile = Callable[[Rules], Compiled]

_SPACES = 64
"""White space that a model may write within an opening."""


def compiler_for(config: ExecutionConfig, tokenizer: Tokenizer) -> Compile:
    """The function that compiles a model's grammars, or raises GrammarError for each."""
    try:
        if not (Path(config.model.path) / TOKENIZER_FILE).exists():
            raise GrammarError("it has no tokenizer")
        compiler = GrammarCompiler(tokenizer, config.model.vocab_size)
    except GrammarError as error:
        reason = f"this model cannot follow a grammar: {error}"

        def refuse(_: Rules) -> Compiled:
            raise GrammarError(reason)

        return refuse

    def compile_rules(rules: Rules) -> Compiled:
        if isinstance(rules, Grammar):
            return compiler.compile(rules)
        return TurnCompiler(compiler, rules).compiled()

    return compile_rules


class TurnCompiler:
    """Compiles the rules of one turn."""

    def __init__(self, compiler: GrammarCompiler, rules: TurnRules) -> None:
        self._compiler, self._rules = compiler, rules
        self._ignored: list[str] = []
        self._window = 0
        self._last_bytes = set[int]()

    def compiled(self) -> CompiledTurn:
        """Raises GrammarError, with the field of the tool or the text at fault, if it is one's."""
        rules = self._rules
        tools = [] if rules.calls == "none" else list(map(self._tool, rules.tools))
        try:
            return self._turn(tools)
        except GrammarError as error:
            if error.param or not tools or any(tool.strict for tool in rules.tools):
                raise
        # Each schema alone can be followed, but not all of them together.
        self._ignored = [rules.param]
        return self._turn([CallableTool(tool.name, {}) for tool in tools])

    def _turn(self, tools: Sequence[CallableTool]) -> CompiledTurn:
        rules = self._rules
        grammars = SectionGrammar(
            rules.form, tools, self._compiler.special, parallel=rules.parallel
        )
        form = self._form(grammars, tools)
        sections = list(self._sections(grammars, form))
        self._check_held(grammars)
        markers = closing = None
        reasoned: list[int] = []
        if (reasoning := rules.form.reasoning) is not None:
            markers = self._pattern(reasoning.open), self._pattern(reasoning.close)
            for marker in (reasoning.open, reasoning.close):
                tokens = self._compiler.vocabulary.tokenize_str(marker.strip(), parse_special=True)
                reasoned += tokens
            if rules.reasoning_budget is not None:
                literals = LarkRules(self._compiler.special)
                close = literals.literal(reasoning.close.strip())
                closing = self._compiler.start_of(literals.grammar(close))
        return CompiledTurn(
            vocabulary=self._compiler.vocabulary,
            tokens=TokenBytes(self._compiler.vocabulary, bytes(self._last_bytes)),
            sections=sections,
            form=form,
            reasoning=markers,
            reasoned=reasoned,
            closing=closing,
            budget=rules.reasoning_budget,
            in_reasoning=rules.in_reasoning,
            goes_on=rules.parallel and all(each.close for each in rules.form.calls),
            window=self._window + _SPACES,
            ignored=tuple(self._ignored),
        )

    def _tool(self, tool: ToolRules) -> CallableTool:
        try:
            text, ignored = self._compiler.followed(tool.parameters, strict=tool.strict)
        except GrammarError as error:
            raise GrammarError(str(error), tool.param) from None
        self._ignored += [f"{tool.param}.{path}" for path in ignored]
        return CallableTool(tool.name, json.loads(text))

    def _form(
        self, grammars: SectionGrammar, tools: Sequence[CallableTool]
    ) -> CompiledGrammar | None:
        """The grammar of a turn that is not free."""
        rules = self._rules
        if rules.text is None and rules.calls != "required":
            return None
        text = ""
        if rules.text is not None and rules.calls != "required":
            try:
                text, ignored = self._compiler.expression(rules.text)
            except GrammarError as error:
                raise GrammarError(str(error), rules.text.param) from None
            self._ignored += ignored
        sections = rules.form.calls if tools else ()
        return self._compiler.start_of(grammars.of_turn(sections, text))

    def _sections(
        self, grammars: SectionGrammar, whole: CompiledGrammar | None
    ) -> Sequence[Section]:
        """The sections by their openings, with the grammar of the `whole` turn if there is one. A
        marker that nothing else begins with is an opening, if it is a special token, or forbidden.
        """
        if not self._rules.tools:
            return ()
        form = self._rules.form
        forbidden = self._rules.calls == "none"
        others = " ".join([*form.text_markers, form.reasoning.open if form.reasoning else ""])
        by_opening: dict[str, list[CallFormat]] = {}
        for each in form.calls:
            alone = each.marker and each.marker not in others
            alone = alone and (forbidden or each.marker in self._compiler.special)
            by_opening.setdefault(each.marker if alone else each.opening, []).append(each)
        sections: list[Section] = []
        for opening, formats in by_opening.items():
            grammar = None if forbidden else whole or self._compiler.start_of(grammars.of(formats))
            at_start = not formats[0].marker
            sections.append(Section(self._pattern(opening, at_start=at_start), at_start, grammar))
        return sections

    def _pattern(self, literal: str, *, at_start: bool = False) -> re.Pattern[bytes]:
        literals = LarkRules(self._compiler.special)
        pattern = literals.pattern(literal)
        self._window = max(self._window, 2 * len(literal.encode()))
        self._last_bytes.add(literals.last_byte(literal))
        return re.compile(rb"\A\s*" + pattern if at_start else pattern)

    def _check_held(self, grammars: SectionGrammar) -> None:
        """Raises GrammarError for a strict tool whose form of arguments cannot follow a keyword."""
        tools = {tool.name: tool for tool in self._rules.tools}
        for name, keyword in dict.fromkeys(grammars.unheld):
            tool = tools[name]
            if tool.strict:
                message = f"{keyword}: this model's calls write it as text, which cannot follow it"
                raise GrammarError(message, tool.param)
            self._ignored.append(f"{tool.param}.{keyword}")
