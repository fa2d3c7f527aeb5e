"""The tools of a request of `/v1/responses`, as a chat has them."""

from typing import Literal, NamedTuple

import msgspec

from engine_core.refusal import RefusalError
from server.api.responses.requests import (
    NamedTool,
    ResponsePrompt,
    ResponseTool,
    ResponseToolChoice,
    ToolOfChoice,
)
from server.errors import quoted
from server.schemas.chat import (
    AllowedTools,
    AllowedToolsChoice,
    Function,
    FunctionChoice,
    Tool,
    ToolChoice,
)
from server.schemas.common import invalid

_CALLED = ("function", "custom")
_TEXT = msgspec.Raw(
    b'{"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], '
    b'"additionalProperties": false}'
)
"""The arguments of a custom tool."""
_Mode = Literal["none", "auto", "required"]
_Choice = _Mode | ToolChoice | AllowedToolsChoice | None


class ToolName(NamedTuple):
    """A tool, as the request names it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def of_function(self) -> str:
        """The name of the function that the template gets for it."""
        return self.name if self.namespace is None else f"{self.namespace}__{self.name}"


class OfferedTools:
    """The tools that the model gets, as `functions` of a chat.

    names     what each function is in the request, by its name
    paths     the request's field for fields of a chat's request
    left_out  the types of the tools that the model does not get, by their fields
    served    the tools that it gets, as they came
    """

    def __init__(self, body: ResponsePrompt) -> None:
        """Raises RefusalError, naming the field."""
        self.functions: list[Tool] = []
        self.names: dict[str, ToolName] = {}
        self.paths: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.served: list[ResponseTool] = []
        for number, tool in enumerate(body.tools or ()):
            self._offer(tool, f"tools[{number}]")
        if not self.functions:
            for path, kind in self.left_out.items():
                raise _not_served(f"{path}.type", kind)
        self.choice: _Choice = self._chosen(body.tool_choice)

    def _offer(self, tool: ResponseTool, path: str) -> None:
        if tool.type == "namespace":
            for number, inner in enumerate(tool.tools or ()):
                self._add(inner, f"{path}.tools[{number}]", _name(tool, path))
        elif tool.type in _CALLED:
            self._add(tool, path, None)
        else:
            self.left_out[path] = tool.type
            return
        self.served.append(tool)

    def _add(self, tool: NamedTool, path: str, namespace: str | None) -> None:
        is_custom = tool.type == "custom"
        if not is_custom and tool.type != "function":
            raise _not_served(f"{path}.type", tool.type)
        if is_custom and tool.format and tool.format.type != "text":
            raise invalid(f"{path}.format", f"{quoted(tool.format.type)} is not served, only text")
        named = ToolName(_name(tool, path), namespace, is_custom)
        self.paths[f"tools[{len(self.functions)}].function"] = path
        self.names.setdefault(named.of_function, named)
        function = Function(
            name=named.of_function,
            description=tool.description,
            parameters=_TEXT if is_custom else tool.parameters,
            strict=tool.strict,
        )
        self.functions.append(Tool(function=function))

    def _chosen(self, chosen: _Mode | ResponseToolChoice | None) -> _Choice:
        if not isinstance(chosen, ResponseToolChoice):
            return chosen
        if chosen.type != "allowed_tools":
            return self._one(chosen, "tool_choice")
        path = "tool_choice.tools"
        if not chosen.tools:
            raise invalid(path, "is required")
        allowed = [
            self._one(tool, f"{path}[{number}]")
            for number, tool in enumerate(chosen.tools)
            if tool.type in _CALLED
        ]
        if not allowed:
            raise _not_served(f"{path}[0].type", chosen.tools[0].type)
        tools = AllowedTools(mode=chosen.mode or "auto", tools=allowed)
        return AllowedToolsChoice(allowed_tools=tools)

    def _one(self, chosen: ToolOfChoice, path: str) -> ToolChoice:
        if chosen.type not in _CALLED:
            raise _not_served(f"{path}.type", chosen.type)
        if chosen.name is None:
            raise invalid(f"{path}.name", "is required")
        name = ToolName(chosen.name, chosen.namespace).of_function
        if name not in self.names:
            raise invalid(f"{path}.name", f"no tool of this request is called {quoted(name)}")
        return ToolChoice(function=FunctionChoice(name=name))


def _name(tool: NamedTool, path: str) -> str:
    if tool.name is None:
        raise invalid(f"{path}.name", "is required")
    return tool.name


def _not_served(path: str, kind: str) -> RefusalError:
    return invalid(path, f"tools of type {quoted(kind)} are not served here")
