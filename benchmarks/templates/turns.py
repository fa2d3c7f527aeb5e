"""`python -m benchmarks.templates.turns FOLDER`: turns with calls of tools of a folder's chat
templates (*.jinja, of any depth), rendered and read back. A checkpoint's `response_template` may
stand beside NAME.jinja, in NAME.response_template.json.

For each template: where the format of its turns is from, and for how many turns the parser finds
the calls that were rendered, in whole, in pieces of one character, in tokens, and in two pieces at
every end of a token, where the first piece alone may have no whole call that the turn has not. A
turn is left out if a value holds a text that ends values in this format (closers), or the template
refuses it or leaves out a call (not written).
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.templates.__main__ import templates_of
from benchmarks.templates.turn_cases import CASES, SCHEMAS, Case
from engine_core.turn_format import TurnFormat
from server.templates.affixes import common_prefix, common_suffix, last_marker
from server.templates.formats import format_of
from server.templates.learnt_format import NotLearntError
from server.templates.loaded_template import LoadedTemplate
from server.templates.protocol import ChatTemplate
from server.templates.turn_writer import FIRST, SECOND, TurnWriter
from server.turns.turn_parser import (
    Call,
    Event,
    ReasoningDelta,
    TextDelta,
    TurnParser,
    calls_of,
)

JSON = dict[str, Any]

_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "A tool.", "parameters": schema},
    }
    for name, schema in SCHEMAS.items()
]
_END = "zqtextvx"
# Why a case is left out.
_CLOSER, _UNWRITTEN = "a value holds a closer", "the template does not write it"


class Turn(NamedTuple):
    """What a parser reads of a turn."""

    text: str
    reasoning: str
    calls: list[Call]


class Tested(NamedTuple):
    """The outcome for a template."""

    name: str
    source: str
    passed: int = 0
    failed: Sequence[str] = ()
    closers: int = 0
    unwritten: int = 0
    seconds: float = 0.0


def turn_of(events: Sequence[Event]) -> Turn:
    """The turn of these events."""
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    return Turn(text, thought, calls_of(events))


def read(
    form: TurnFormat,
    prompt: str,
    pieces: Iterable[str],
    schemas: Mapping[str, Mapping[str, Any]] = SCHEMAS,
) -> Turn:
    """The turn that a parser reads of pieces of text."""
    parser = TurnParser(form, schemas, prompt)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return turn_of([*events, *parser.finish()])


def outcome_of(name: str, source: str, declared: JSON | None) -> Tested:
    """The outcome for a template, with the `response_template` that its checkpoint may have."""
    loaded = LoadedTemplate(
        ChatTemplate(source=source, file=name, tokens=_TOKENS, response_template=declared)
    )
    began = time.process_time()
    try:
        form, where = format_of(loaded)
    except NotLearntError as error:
        return Tested(name, f"refused: {error}", seconds=time.process_time() - began)
    seconds = time.process_time() - began
    pair = [Call(FIRST, {}), Call(SECOND, {})]
    several = SECOND in (TurnWriter(loaded).calls(*pair) or "")
    writer = TurnWriter(loaded, _TOOLS)
    writer.take_tools()
    failed: list[str] = []
    counts: Counter[str] = Counter()
    for case_name, case in CASES.items():
        fits = len(case.calls) == 1 or (several and form.calls[0].many)
        outcome = _outcome(writer, form, case) if fits else _UNWRITTEN
        counts[outcome] += 1
        if outcome not in ("", _CLOSER, _UNWRITTEN):
            failed.append(f"{case_name}: {outcome}")
    return Tested(name, where, counts[""], failed, counts[_CLOSER], counts[_UNWRITTEN], seconds)


def _outcome(writer: TurnWriter, form: TurnFormat, case: Case) -> str:
    """The fault that a case shows, empty for none, or why it is left out."""
    if case.text and not form.calls[0].marker:
        return _UNWRITTEN
    if holds_closer(form, case.calls):
        return _CLOSER
    if (written := written_turn(writer, form, case)) is None:
        return _UNWRITTEN
    return _fault(form, *written, case)


def written_turn(writer: TurnWriter, form: TurnFormat, case: Case) -> tuple[str, str] | None:
    """The end of the prompt and the turn behind it. None if the template does not write it."""
    rendered = writer.calls(*case.calls, text=case.text, reasoning=case.reasoning)
    if rendered is None or any(call.name not in rendered for call in case.calls):
        return None
    header = common_prefix(writer.prompt(), rendered)
    opening = form.reasoning.open if form.reasoning else ""
    # Templates may write reasoning without what leads to it in the prompt.
    bare = case.reasoning and case.reasoning in rendered and opening not in rendered
    prompt = writer.prompt() if bare else header
    end = writer.answer(_END).partition(_END)[2]
    turn = rendered[len(header) : len(rendered) - len(common_suffix(rendered, end))]
    if last_marker(turn) == form.calls[0].close:  # behind text, where some write it behind calls
        turn = turn.removesuffix(form.calls[0].close)
    return prompt, turn


@cache
def _fault_of_calls(written: bytes, prompt: str, turn: str, expected: str) -> str:
    """The fault of the calls that a format, as JSON, reads of a turn. Many templates share one."""
    form = msgspec.json.decode(written, type=TurnFormat)
    whole = read(form, prompt, [turn])
    calls = [Call(*call) for call in json.loads(expected)]
    if _typed(whole.calls) != _typed(calls):
        return f"read {whole.calls} of {turn!r}"
    tokens = _tokens(turn)
    for pieces in (list(turn), tokens):
        if read(form, prompt, pieces) != whole:
            return f"otherwise in {len(pieces)} pieces: {turn!r}"
    for cut in accumulate(map(len, tokens)):
        if read(form, prompt, [turn[:cut], turn[cut:]]) != whole:
            return f"otherwise in two pieces, at {cut} of {turn!r}"
        begun = _typed(read(form, prompt, [turn[:cut]]).calls)
        if begun != _typed(calls)[: len(begun)]:
            return f"of the first {cut} characters, {begun} of {turn!r}"
    return ""


def _fault(form: TurnFormat, prompt: str, turn: str, case: Case) -> str:
    fault = _fault_of_calls(msgspec.json.encode(form), prompt, turn, json.dumps(case.calls))
    if fault:
        return fault
    found = read(form, prompt, [turn])
    for what, wanted, text in (
        ("text", case.text, found.text),
        ("reasoning", case.reasoning, found.reasoning),
    ):
        # Many templates leave out text beside calls, and reasoning; some open reasoning for both.
        if case.text and found.reasoning.startswith(case.text):
            continue
        if text.strip() != wanted and (text.strip() or (wanted and wanted in turn)):
            return f"{what} {text!r} of {turn!r}"
    return ""


def _typed(calls: Sequence[Call]) -> list[str]:
    return [json.dumps(call, sort_keys=True) for call in calls]


def holds_closer(form: TurnFormat, calls: Sequence[Call]) -> bool:
    """True if a value has a text that ends it in this format, or that this format changes."""
    members = form.calls[0].members
    if members is None:
        return False
    for text in strings_in([call.arguments for call in calls]):
        for value in members.values:
            if value.dialect is None and value.close.strip() and value.close.strip() in text:
                return True
            ends = value.quote or ("'\"\\,()[]" if not value.close.strip() else "")
            if value.quote in text if value.quote else set(ends) & set(text):
                return True
            if not (value.close.strip() or value.quote) and text != text.strip():
                return True
    return False


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from strings_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings_in(each)


@cache
def _tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of the cases' texts, in which markers are of several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [json.dumps(case.calls, ensure_ascii=False) for case in CASES.values()]
    texts += ["<tool_call>\n<function=f>\n</function>\n</tool_call>", "<think>\n</think>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _tokens(text: str) -> list[str]:
    """The text of each token; a character of several goes with the last of them."""
    offsets = _tokenizer().encode(text).offsets
    ends = sorted({end for _, end in offsets} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def main() -> None:
    """A line for each fault, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds templates in files *.jinja")
    folder: Path = parser.parse_args().folder
    rows = [
        outcome_of(str(file), source, _declared(folder / file))
        for file, source in templates_of(folder)
    ]
    for row in rows:
        for fault in row.failed:
            print(f"{row.name}: {fault}", flush=True)
    print(_table(rows))


def _declared(template: Path) -> JSON | None:
    """The `response_template` in the file of that name beside a template."""
    file = template.with_suffix(".response_template.json")
    return json.loads(file.read_text()) if file.exists() else None


def _table(rows: Sequence[Tested]) -> str:
    columns = ("template", "source", "cases", "passed", "closers", "not written", "seconds")
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for row in rows:
        cases = row.passed + len(row.failed) + row.closers + row.unwritten
        lines.append(
            f"| {row.name} | {row.source} | {cases} | {row.passed} | {row.closers} |"
            f" {row.unwritten} | {row.seconds:.3f} |"
        )
    sources = Counter(row.source.partition(":")[0] for row in rows)
    passed, failed = sum(row.passed for row in rows), sum(len(row.failed) for row in rows)
    closers, unwritten = sum(row.closers for row in rows), sum(row.unwritten for row in rows)
    slowest = max(row.seconds for row in rows)
    lines.append(
        f"| all {len(rows)} | {', '.join(f'{n} {name}' for name, n in sources.items())} |"
        f" {passed + failed + closers + unwritten} | {passed} | {closers} | {unwritten} |"
        f" at most {slowest:.3f} |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
