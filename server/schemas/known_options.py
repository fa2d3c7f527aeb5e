"""Every option of a request that a server or client documents, and whether it is served here, by
`known_options.toml`. Body types refuse options by it, tests hold all else to it."""

from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta

Treatment = Literal["obeyed", "accepted", "refused"]
Source = Literal[
    "OpenAI", "Anthropic", "vLLM", "SGLang", "TGI", "llama.cpp", "TEI", "NIM", "Cohere", "Jina",
    "Voyage", "FlagEmbedding", "DeepSeek", "Qwen", "HF", "LiteLLM", "penstock",
]  # fmt: skip


class KnownOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table. `neutral` values mean what leaving the option out does, as null."""

    by: list[Source]
    neutral: list[Any] = []


class OptionGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that requests of some types share, by the dotted path of each."""

    requests: list[str]
    obeyed: dict[str, KnownOption] = {}
    refused: dict[str, KnownOption] = {}
    accepted: dict[str, KnownOption] = {}


class KnownOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table. `endpoints` holds the paths for each type of request."""

    endpoints: dict[str, list[str]]
    groups: list[OptionGroup]

    def of(self, request: str, treatment: Treatment) -> dict[str, KnownOption]:
        """The options of one type of request that are treated so."""
        return {
            name: row
            for group in self.groups
            if request in group.requests
            for name, row in getattr(group, treatment).items()
        }


@cache
def known_options() -> KnownOptions:
    """The table."""
    text = (resources.files("server.schemas") / "known_options.toml").read_bytes()
    return msgspec.toml.decode(text, type=KnownOptions)


def refused_fields(request: type[msgspec.Struct]) -> dict[str, Any]:
    """Dotted path -> type of null and the neutral values, of every option that a request
    refuses."""
    refused = known_options().of(request.__name__, "refused")
    return {name: Union[(None, *map(_type_of, option.neutral))] for name, option in refused.items()}


def _type_of(value: Any) -> Any:
    match value:
        case {}:
            return Annotated[dict[str, Any], Meta(max_length=0)]
        case []:
            return Annotated[list[None], Meta(max_length=0)]
        case [entry]:
            return list[Literal[entry]]
        case float():
            return Annotated[float, Meta(ge=value, le=value)]
        case _:
            return Literal[value]
