"""The tools of a chat request, checked, for its template, its engine and its answer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from engine_core.messages import ToolRules
from engine_core.refusal import RefusalError
from server.errors import quoted
from server.schemas.chat import (
    AllowedToolsChoice,
    ChatRequest,
    Function,
    FunctionChoice,
    Tool,
    ToolChoice,
)
from server.schemas.common import invalid
from server.schemas.sampling import MAX_GRAMMAR_CHARS

MAX_TOOLS = 1024
MAX_SCHEMAS_CHARS = 8 * MAX_GRAMMAR_CHARS
_NO_PARAMETERS = '{"type": "object", "properties": {}}'

_Calls = Literal["auto", "none", "required"]
_Choice = _Calls | ToolChoice | AllowedToolsChoice | FunctionChoice | None


class RequestedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a request.

    described  all of them, for the template
    rules      those that may be called
    schemas    the schemas of the arguments of these, by name; none where none is to be called
    calls      whether calls may come, must, or must not
    parallel   whether more than one call may come
    field      the request's name for its tools
    """

    described: list[dict[str, Any]]
    rules: tuple[ToolRules, ...]
    schemas: dict[str, dict[str, Any]]
    calls: _Calls
    parallel: bool
    field: Literal["tools", "functions"]


def requested_tools(body: ChatRequest) -> RequestedTools | None:
    """The tools of a request. Raises RefusalError, naming the field: two tools of one name, a
    choice of none of them, a schema of no object, too many or too large schemas."""
    if body.functions and body.tools:
        raise invalid("functions", "not together with tools")
    if body.tool_choice not in (None, "none", "auto") and not body.tools:
        raise invalid("tool_choice", "only with tools")
    if body.function_call not in (None, "none", "auto") and not body.functions:
        raise invalid("function_call", "only with functions")
    if body.functions:
        functions = {f"functions[{n}]": each for n, each in enumerate(body.functions)}
        return _requested(functions, body.function_call, "functions", parallel=False)
    parallel = body.parallel_tool_calls is not False
    return tools_of(body.tools, body.tool_choice, parallel=parallel)


def tools_of(
    tools: Sequence[Tool] | None, chosen: _Choice = None, *, parallel: bool = True
) -> RequestedTools | None:
    """Some `tools` of which some are `chosen`. Raises RefusalError, naming the field."""
    functions = {f"tools[{n}].function": each.function for n, each in enumerate(tools or ())}
    return _requested(functions, chosen, "tools", parallel=parallel) if functions else None


def _requested(
    functions: Mapping[str, Function],
    chosen: _Choice,
    field: Literal["tools", "functions"],
    *,
    parallel: bool,
) -> RequestedTools:
    """The tools of `functions` by their paths."""
    if len(functions) > MAX_TOOLS:
        message = f"{field}: {len(functions)} of them; at most {MAX_TOOLS} are allowed"
        raise RefusalError("too_large", message, field)
    texts = {path: _schema_text(each, path) for path, each in functions.items()}
    if (size := sum(map(len, texts.values()))) > MAX_SCHEMAS_CHARS:
        raise _too_large(field, size, MAX_SCHEMAS_CHARS)
    schemas: dict[str, dict[str, Any]] = {}
    for path, function in functions.items():
        if function.name in schemas:
            raise invalid(f"{path}.name", f"two functions are called {quoted(function.name)}")
        schemas[function.name] = _schema(texts[path], f"{path}.parameters")
    calls, names = _callable(chosen, schemas)
    return RequestedTools(
        described=[_described(each, schemas[each.name]) for each in functions.values()],
        rules=tuple(
            ToolRules(
                name=each.name,
                parameters=texts[path],
                strict=bool(each.strict),
                param=f"{path}.parameters",
            )
            for path, each in functions.items()
            if each.name in names
        ),
        schemas={} if calls == "none" else {name: schemas[name] for name in names},
        calls=calls,
        parallel=parallel and not isinstance(chosen, ToolChoice),
        field=field,
    )


def _schema_text(function: Function, path: str) -> str:
    raw = function.parameters
    text = "null" if raw is UNSET else bytes(raw).decode()
    if text == "null":
        return _NO_PARAMETERS
    if not text.startswith("{"):
        raise invalid(f"{path}.parameters", "expected an object")
    if len(text) > MAX_GRAMMAR_CHARS:
        raise _too_large(f"{path}.parameters", len(text), MAX_GRAMMAR_CHARS)
    return text


def _too_large(field: str, size: int, most: int) -> RefusalError:
    message = f"{field}: {size} characters of JSON; at most {most} are allowed"
    return RefusalError("too_large", message, field)


def _schema(text: str, field: str) -> dict[str, Any]:
    """The schema of arguments. Raises RefusalError for one that is of no object, or has a number
    beyond all floats."""
    try:
        schema = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise invalid(field, str(error).partition(" - at")[0].lower()) from None
    kind: Any = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise invalid(f"{field}.type", "expected 'object': arguments are written as one")
    return schema


def _callable(chosen: _Choice, known: Iterable[str]) -> tuple[_Calls, list[str]]:
    """Whether tools may be called by a choice among the known ones, and which. Raises RefusalError,
    naming its field."""
    calls: _Calls = "required"
    match chosen:
        case ToolChoice(function=function):
            named = {"tool_choice.function": function}
        case FunctionChoice():
            named = {"function_call": chosen}
        case AllowedToolsChoice(allowed_tools=allowed):
            calls, field = allowed.mode, "tool_choice.allowed_tools.tools"
            named = {
                f"{field}[{n}].function": each.function for n, each in enumerate(allowed.tools)
            }
        case _:
            return chosen or "auto", [*known]
    for path, choice in named.items():
        if choice.name not in known:
            reason = f"no function of this request is called {quoted(choice.name)}"
            raise invalid(f"{path}.name", reason)
    return calls, [choice.name for choice in named.values()]


def _described(function: Function, schema: dict[str, Any]) -> dict[str, Any]:
    """A tool for the template. Some read `properties` unasked."""
    described: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        described["description"] = function.description
    if "properties" not in schema:
        lacking: dict[str, Any] = {"type": "object", "properties": {}}
        schema = lacking | schema
    return {"type": "function", "function": {**described, "parameters": schema}}
