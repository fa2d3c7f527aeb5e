"""`python -m benchmarks.templates.vendor_verifier SUITE TEMPLATES`: the tool schemas of a checked
out Kimi-Vendor-Verifier, sent to a daemon with each chat template (*.jinja, of any depth).

The suite sends each schema as that of a strict tool which must be called, streamed and not, and
checks the arguments. Beyond its check, a turn must end with `tool_calls`, and both answers to one
seed must be equal. The model writes at random what the grammar permits, and soon ends. The suite
needs `openai` and `jsonschema`.
"""

import argparse
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

from openai import OpenAI

from benchmarks.daemon.running_daemon import running_daemon
from benchmarks.templates.__main__ import templates_of
from benchmarks.templates.closing_model import write_closing_model

_MODEL, _MAX_TOKENS, _AT_ONCE = "closing", 2048, 16
_PASSED, _REFUSED = "passed", "refused"


class Outcome(NamedTuple):
    """What became of a case, and why."""

    result: str
    detail: str = ""


class SeededClient:
    """What the suite uses of openai's client. Requests get a seed, and what ended the turn is
    kept."""

    def __init__(self, client: OpenAI, seed: int) -> None:
        self._client, self._seed = client, seed
        self.finish_reason: str | None = None
        self.chat = self.completions = self

    def create(self, **request: Any) -> Any:
        """An answer, or its pieces."""
        answer: Any = self._client.chat.completions.create(**request, seed=self._seed)
        if request.get("stream"):
            return self._watched(answer)
        self.finish_reason = answer.choices[0].finish_reason
        return answer

    def _watched(self, pieces: Any) -> Iterator[Any]:
        for piece in pieces:
            if piece.choices:
                self.finish_reason = piece.choices[0].finish_reason or self.finish_reason
            yield piece


class Suite:
    """The suite's schemas and checks, from its own source."""

    def __init__(self, folder: Path) -> None:
        """`folder` is a checkout's."""
        file = folder / "tests" / "tool_call_json_schema" / "validator.py"
        self._module = _module_of(file)
        cases = self._module.load_cases(
            folder / "testdata" / "walle_validator_cases" / "validator_cases"
        )
        self.cases: list[tuple[Any, Any, str]] = self._module.select_cases(
            cases, selection="all", requested_cases=set(), max_cases=None
        )

    def outcomes(self, client: OpenAI, schema: Any, seed: int) -> list[Outcome]:
        """The outcomes of a schema: of the whole answer and of the streamed one."""
        whole, arguments = self._outcome(client, schema, seed, stream=False)
        streamed, joined = self._outcome(client, schema, seed, stream=True)
        if whole.result == _PASSED and arguments != joined:
            streamed = Outcome("different", f"{arguments!r}, streamed {joined!r}")
        return [whole, streamed]

    def _outcome(
        self, client: OpenAI, schema: Any, seed: int, *, stream: bool
    ) -> tuple[Outcome, str | None]:
        seeded = SeededClient(client, seed)
        answer = self._module.send_tool_schema(
            seeded, _MODEL, schema, _MAX_TOKENS, False, "none", stream=stream
        )
        if not answer.accepted:
            result = _REFUSED if answer.http_status == 400 else "failed"
            return Outcome(result, answer.message), None
        if seeded.finish_reason != "tool_calls":
            return Outcome(f"ended by {seeded.finish_reason}", answer.message), answer.arguments
        is_valid, message = self._module.validate_arguments(schema, answer.arguments)
        return Outcome(_PASSED if is_valid else "invalid", message), answer.arguments


def _module_of(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("vendor_verifier", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def outcomes_with(suite: Suite, template: str, rounds: int) -> list[tuple[str, Outcome]]:
    """The name and an outcome of every case with this template."""
    with TemporaryDirectory(prefix="penstock-") as name:
        model = write_closing_model(Path(name) / _MODEL, template)
        with (
            running_daemon(str(model)) as daemon,
            OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client,
            ThreadPoolExecutor(_AT_ONCE) as threads,
        ):
            asked = [
                (f"{case.suite}:{case.line}", threads.submit(suite.outcomes, client, schema, seed))
                for seed, (case, schema, _) in enumerate(suite.cases * rounds)
            ]
            return [(name, each) for name, future in asked for each in future.result()]


def _row(name: object, results: Mapping[str, int]) -> str:
    others = [f"{count} {result}" for result, count in results.items() if result != _PASSED]
    return f"| {name} | {sum(results.values())} | {results[_PASSED]} | {', '.join(others)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """A line for each case that did not pass, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, help="a checkout of Kimi-Vendor-Verifier")
    parser.add_argument("templates", type=Path, help="holds templates in files *.jinja")
    parser.add_argument("--rounds", type=int, default=1, help="seeds for each case")
    options = parser.parse_args(arguments)
    suite = Suite(options.suite)
    rows: list[str] = []
    for file, source in templates_of(options.templates):
        found = outcomes_with(suite, source, options.rounds)
        for name, outcome in found:
            if outcome.result != _PASSED:
                print(f"{file}: {name}: {outcome.result}: {outcome.detail}", flush=True)
        rows.append(_row(file, Counter(outcome.result for _, outcome in found)))
    print("| template | cases | passed | others |\n| --- | --- | --- | --- |", *rows, sep="\n")


if __name__ == "__main__":
    main()
