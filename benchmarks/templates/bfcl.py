"""`python -m benchmarks.templates.bfcl SUITE TEMPLATES`: right answers of BFCL's Python categories,
rendered by each chat template (*.jinja, of any depth), read back and given to BFCL's AST checker.

SUITE is the folder `berkeley-function-call-leaderboard` of a checkout. A right answer has the first
possible value of each argument that is of the argument's type. One is left out if the checker
refuses it before it is rendered, or an argument has no value of its type.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from benchmarks.templates.__main__ import templates_of
from benchmarks.templates.turn_cases import Case
from benchmarks.templates.turns import holds_closer, read, written_turn
from engine_core.structured.schema_types import type_of_value, types_of, types_of_member
from engine_core.turn_format import TurnFormat
from server.templates.formats import format_of
from server.templates.loaded_template import LoadedTemplate
from server.templates.protocol import ChatTemplate
from server.templates.turn_writer import TurnWriter
from server.turns.turn_parser import Call

JSON = dict[str, Any]
_CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple")
_CATEGORIES += tuple(f"live_{name}" for name in ("simple", *_CATEGORIES[1:]))
_MODEL = "penstock"
_PASSED, _CLOSER, _UNWRITTEN, _WRONG = "passed", "closers", "not written", "failed"
_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Question(NamedTuple):
    """A case: its tools as requests have them, its answer, and a check of calls, which says what
    is wrong with them."""

    name: str
    tools: list[JSON]
    answer: list[Call]
    fault: Callable[[list[Call]], str]

    @property
    def schemas(self) -> dict[str, JSON]:
        return {tool["function"]["name"]: tool["function"]["parameters"] for tool in self.tools}

    @property
    def is_right(self) -> bool:
        """True if the checker takes the answer, and its arguments are of their types."""
        schemas = self.schemas
        are_typed = all(
            type_of_value(value) & types_of_member(schemas[call.name], key)
            for call in self.answer
            for key, value in call.arguments.items()
        )
        return are_typed and not self.fault(self.answer)


class Suite:
    """BFCL's cases and its checker, from its own source."""

    def __init__(self, folder: Path) -> None:
        # Its table of models imports every provider's client. The checker asks it one thing.
        models: Any = ModuleType("bfcl_eval.constants.model_config")
        models.MODEL_CONFIG_MAPPING = {_MODEL: SimpleNamespace(underscore_to_dot=True)}
        sys.modules[models.__name__] = models
        sys.path.insert(0, str(folder))
        from bfcl_eval.constants import enums, type_mappings  # pyright: ignore[reportMissingImports]  # noqa: PLC0415
        from bfcl_eval.eval_checker.ast_eval import ast_checker  # pyright: ignore[reportMissingImports]  # noqa: PLC0415

        self._check: Any = ast_checker.ast_checker
        self._types: dict[str, str] = type_mappings.GORILLA_TO_OPENAPI
        self._python: Any = enums.Language.PYTHON
        self._data = folder / "bfcl_eval" / "data"

    def questions(self, category: str) -> Iterator[Question]:
        """Those of a category."""
        file = f"BFCL_v4_{category}.json"
        answers = {
            each["id"]: each["ground_truth"]
            for each in _lines(self._data / "possible_answer" / file)
        }
        for case in _lines(self._data / file):
            described, possible = case["function"], answers[case["id"]]

            def fault(
                calls: list[Call], described: JSON = described, possible: Any = possible
            ) -> str:
                output = [{call.name: call.arguments} for call in calls]
                args = (described, output, possible, self._python, category, _MODEL)
                found = self._check(*args)
                return "" if found["valid"] else str(found["error"])

            tools = [self._tool(each) for each in described]
            question = Question(case["id"], tools, [], fault)
            question.answer.extend(
                Call(_name(name), _right(values, question.schemas[_name(name)]))
                for call in possible
                for name, values in call.items()
            )
            yield question

    def _tool(self, described: JSON) -> JSON:
        function = described | {
            "name": _name(described["name"]),
            "parameters": self._schema(described["parameters"]),
        }
        return {"type": "function", "function": function}

    def _schema(self, schema: JSON) -> JSON:
        """A schema with JSON Schema's names of types, as BFCL has them for OpenAI's models."""
        found = dict(schema)
        if "type" in found:
            found["type"] = self._types.get(found["type"], "string")
        if isinstance(properties := found.get("properties"), dict):
            found["properties"] = {key: self._schema(value) for key, value in properties.items()}
        if isinstance(items := found.get("items"), dict):
            found["items"] = self._schema(items)
        return found


def _lines(file: Path) -> Iterator[JSON]:
    return map(json.loads, file.read_text("utf-8").splitlines())


def _name(name: str) -> str:
    """A tool's name as OpenAI's models have it, which may hold no dot."""
    return name.replace(".", "_")


def _right(values: Mapping[str, list[Any]], schema: JSON) -> JSON:
    """Arguments of possible values."""
    properties = schema.get("properties", {})
    return {
        key: _plain(value, properties.get(key, {}))
        for key, value in _chosen(values, schema).items()
    }


def _plain(value: Any, schema: JSON) -> Any:
    """A possible value, in which the members of objects have possible values, too."""
    if isinstance(value, dict):
        return _chosen(value, schema)
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return [_chosen(each, schema.get("items", {})) for each in value]
    return value


def _chosen(values: Mapping[str, list[Any]], schema: JSON) -> JSON:
    """The first possible value of each member that its schema has. An empty one stands for none,
    unless the member is required."""
    properties, chosen = schema.get("properties", {}), dict[str, Any]()
    for key, possible in values.items():
        types = types_of(properties.get(key), schema)
        fit = (each for each in possible if each != "" and type_of_value(each) & types)
        value = next(fit, "" if "" in possible or not possible else possible[0])
        if value != "" or key in schema.get("required", []):
            chosen[key] = value
    return chosen


class Reader:
    """Writes and reads answers by one template."""

    def __init__(self, source: str) -> None:
        """Raises NotLearntError."""
        self._loaded = LoadedTemplate(ChatTemplate(source=source, file="", tokens=_TOKENS))
        self.form: TurnFormat = format_of(self._loaded)[0]

    def outcome(self, question: Question) -> tuple[str, str]:
        """What became of an answer, and why."""
        writer = TurnWriter(self._loaded, question.tools)
        writer.take_tools()
        if (written := written_turn(writer, self.form, Case(question.answer))) is None:
            return _UNWRITTEN, ""
        prompt, turn = written
        calls = read(self.form, prompt, [turn], question.schemas).calls
        fault = question.fault(calls)
        if not fault and read(self.form, prompt, list(turn), question.schemas).calls != calls:
            fault = "otherwise in pieces"
        if not fault:
            return _PASSED, ""
        result = _CLOSER if holds_closer(self.form, question.answer) else _WRONG
        return result, f"{fault}: {calls} of {turn!r}"


def main() -> None:
    """A line for each fault, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, help="BFCL's folder of a checkout")
    parser.add_argument("templates", type=Path, help="holds templates in files *.jinja")
    options = parser.parse_args()
    suite = Suite(options.suite)
    rows: list[str] = []
    readers = {file: Reader(source) for file, source in templates_of(options.templates)}
    for category in _CATEGORIES:
        questions = list(suite.questions(category))
        right = [each for each in questions if each.is_right]
        for file, reader in readers.items():
            counts: Counter[str] = Counter()
            for question in right:
                result, detail = reader.outcome(question)
                counts[result] += 1
                if detail:
                    print(f"{file}: {question.name}: {result}: {detail}", flush=True)
            cells = [counts[each] for each in (_PASSED, _CLOSER, _UNWRITTEN, _WRONG)]
            left_out = len(questions) - len(right)
            rows.append(f"| {category} | {file} | {left_out} | {' | '.join(map(str, cells))} |")
    columns = "category | template | left out | passed | closers | not written | failed"
    print(f"| {columns} |\n{'| --- ' * 7}|", *rows, sep="\n")


if __name__ == "__main__":
    main()
