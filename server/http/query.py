"""Queries of URLs, decoded into a typed struct."""

from typing import TypeVar

import msgspec
from starlette.requests import Request

from engine_core.refusal import RefusalError
from server.msgspec_faults import fault_of

Query = TypeVar("Query", bound=msgspec.Struct)


def query_of(request: Request, query: type[Query]) -> Query:
    """Raises RefusalError, the parameter at fault as its `param`; unknown names are ignored."""
    try:
        return msgspec.convert(dict(request.query_params), query, strict=False)
    except msgspec.ValidationError as error:
        fault = fault_of(error)
        raise RefusalError("invalid_request", f"{fault.path}: {fault.reason}", fault.path) from None
