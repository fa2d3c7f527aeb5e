"""Request bodies: read within bounds, decoded into a typed struct, faults named by field."""

import asyncio
import re
import types
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from types import TracebackType
from typing import Annotated, Any, Generic, Self, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Raw
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from engine_core.refusal import RefusalError
from server.errors import Fault, entry_at_fault, fault_of, shortened
from server.schemas.known_options import refused_fields
from server.service.decoding_turns import LARGE_BYTES
from server.service.ledger import Account
from server.service.service import record_of, service_of

Struct = TypeVar("Struct", bound=msgspec.Struct)
# Up to so many times the permitted size, a body is read to its end before it is refused.
_DROPPED_BODIES = 4
# A body has the first, and the time that it takes at this rate.
_READING_S = 10
_READING_RATE = 16 << 10
# What msgspec says of a field that derived structs have for the sake of others in a union.
_ONLY_NULL = "expected `null`,"
# A body that has been looked at, in its request's scope.
_READ = "penstock.body"
_NULL = Raw(b"null")
_fields = msgspec.json.Decoder(dict[str, Raw])
_INDICES = re.compile(r"\[[^]]*\]")
_LAST_INDEX = re.compile(r"\[[^]]*\]$")


class ClientLeftError(Exception):
    """The client disconnected before it had its answer: nobody reads one."""


class Body(Generic[Struct]):
    """Reads bodies of one type. Options that the table of known options refuses are refused
    by name unless neutral."""

    def __init__(self, struct: type[Struct]) -> None:
        self._struct = struct
        self._refused = refused_fields(struct)
        self._decoder = msgspec.json.Decoder(derived(struct, self._refused))

    async def read(self, request: Request) -> Struct:
        """Raises RefusalError: as `whole_body`, or `invalid_request` with the field as `param`."""
        raw = await whole_body(request)
        return self.decode(raw, strictly=service_of(request).config.strict_fields)

    def decode(self, raw: bytes, *, strictly: bool = False) -> Struct:
        """Raises RefusalError `invalid_request`, with the field as `param` where there is one. With
        `strictly` an unknown field is one, too."""
        decoder = self._strict_decoder if strictly else self._decoder
        try:
            # msgspec checks the strings that it keeps; a body is UTF-8 as a whole or not at all.
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise RefusalError("invalid_request", f"the body is not UTF-8: {error}") from None
        try:
            return decoder.decode(text)
        except msgspec.ValidationError as error:
            raise self._error(fault_of(error), text) from None
        except msgspec.DecodeError as error:
            raise RefusalError("invalid_request", f"the body is not valid JSON: {error}") from None
        except RecursionError:
            raise RefusalError("invalid_request", "the body is nested too deeply") from None

    @cached_property
    def _strict_decoder(self) -> msgspec.json.Decoder[Struct]:
        return msgspec.json.Decoder(derived(self._struct, self._refused, strictly=True))

    def _error(self, fault: Fault, text: str) -> RefusalError:
        """The decoder's message in words for the person who wrote the field."""
        field = _LAST_INDEX.sub("", fault.path)
        if _INDICES.sub("", field) in self._refused:
            message = f"{field} is known but not served here: leave it out"
            return RefusalError("invalid_request", message, field)
        if fault.reason.startswith(_ONLY_NULL):
            message = f"{fault.path}: is for another type of this object: leave it out"
            return RefusalError("invalid_request", message, fault.path)
        param = fault.path or None
        if fault.kind == "entry" and (key := entry_at_fault(text, self._struct, fault.path)):
            param = f"{param}.{shortened(key)}"
        subject = param or "the body"
        if fault.kind == "key":
            subject = f"a key of {subject}"
        return RefusalError("invalid_request", f"{subject}: {fault.reason}", param)


def converted(fields: Mapping[str, str], kind: type[Struct]) -> Struct:
    """The fields of a query or a form. Raises RefusalError, the one at fault as its `param`.
    Unknown names are ignored."""
    try:
        return msgspec.convert(dict(fields), kind, strict=False)
    except msgspec.ValidationError as error:
        fault = fault_of(error)
        raise RefusalError("invalid_request", f"{fault.path}: {fault.reason}", fault.path) from None


async def whole_body(request: Request) -> bytes:
    """The raw body, when it is its turn to be decoded. Raises RefusalError `body_too_large`,
    `unsupported_encoding`, `overloaded` or `body_timeout`, or ClientLeftError.

    A body that is somewhat too large is read to its end and dropped: many clients read no answer
    before they have sent their body. One that is far too large ends the connection.
    """
    if (read := request.scope.pop(_READ, None)) is not None:
        return read
    # Most bodies come with their headers: nothing need be waited for, nor counted.
    body = _buffered if has_come(request.scope) else _incoming
    whole = await body(request, service_of(request).limits.max_body_size)
    check_encoding(request)
    if len(whole) > LARGE_BYTES:
        with body_account(request) as account:
            account.hold(len(whole))
            key = record_of(request).client.share
            if not await service_of(request).decoding.begin(key, request.is_disconnected):
                raise ClientLeftError
    return whole


async def looked_at(request: Request) -> bytes:
    """The raw body, which the next `whole_body` has at once. Raises as that does."""
    raw = request.scope[_READ] = await whole_body(request)
    return raw


async def fields_of(request: Request) -> dict[str, Raw]:
    """The fields of a body that are not null, none if it cannot be decoded. The body can still be
    read. Raises as `whole_body` does."""
    try:
        fields = _fields.decode(await looked_at(request))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {name: value for name, value in fields.items() if value != _NULL}


def text_in(fields: Mapping[str, Raw], name: str) -> str | None:
    """The text of a field, None where there is none that can be read."""
    try:
        return msgspec.json.decode(fields[name], type=str)
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


async def _buffered(request: Request, max_bytes: int) -> bytes:
    """The body, which is here, in one piece: asking for it so costs half of what a stream does."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientLeftError
    if len(message["body"]) > max_bytes:
        raise _too_large(max_bytes)
    return message["body"]


async def _incoming(request: Request, max_bytes: int) -> bytes:
    hopeless = max_bytes * _DROPPED_BODIES
    length = length_of(request, max_bytes)
    if length > hopeless:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    async with incoming(request, length) as account:
        async for part in request.stream():
            size += len(part)
            if size <= max_bytes:
                account.hold(size)
                parts.append(part)
            elif size > hopeless:
                raise _too_large(max_bytes)
    if size > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(parts)


@asynccontextmanager
async def incoming(request: Request, length: int) -> AsyncGenerator[Account]:
    """Read a body of `length` bytes within the block, and have the account hold what has come.
    Raises RefusalError `overloaded` or `body_timeout`, or ClientLeftError."""
    seconds = _READING_S + length / _READING_RATE
    limit = asyncio.timeout(seconds)
    try:
        with body_account(request) as account:
            async with limit:
                yield account
    except ClientDisconnect:
        raise ClientLeftError from None
    except TimeoutError:
        if not limit.expired():  # that of a disk, say
            raise
        message = f"the body has not come within {seconds:.0f} s"
        raise RefusalError("body_timeout", message) from None


def has_come(scope: Scope) -> bool:
    return "body_has_come" in scope.get("state", ())


def length_of(request: Request, unknown: int) -> int:
    """Bytes of the body, or `unknown` where the request does not say."""
    return int(request.headers.get("content-length", unknown))


def body_account(request: Request) -> Account:
    key = record_of(request).client.share.number
    return service_of(request).ledger.account(key, "the body of this request")


def check_encoding(request: Request) -> None:
    """Raises RefusalError for a compressed body: one would be bounded only once it is unpacked."""
    # Starlette's Headers cost more than all else here.
    for name, value in request.scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in {b"", b"identity"}:
            named = f"content-encoding: {shortened(value.decode('latin-1'))}"
            message = f"{named} is not served: send the body uncompressed"
            raise RefusalError("unsupported_encoding", message)


def _too_large(max_bytes: int) -> RefusalError:
    return RefusalError("body_too_large", f"the body is larger than {max_bytes} bytes")


# A task that watches costs as much as a tenth of a short request.
_UNWATCHED_S = 0.1


class CancelOnDisconnect:
    """Cancels the body of its `with` block, and only that, when the client disconnects: that block
    raises ClientLeftError. The request's body must have been read. Nobody looks in the first tenth
    of a second."""

    def __init__(self, receive: Receive) -> None:
        self._gone = False
        self._receive = receive

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that uses the block is run by a task"
        self._task = task
        self._watch: asyncio.TimerHandle | asyncio.Task[None]
        self._watch = task.get_loop().call_later(_UNWATCHED_S, self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.cancel()
        del self._watch  # its traceback leads back here: a cycle for the collector otherwise
        if self._gone and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise ClientLeftError from None

    def _begin(self) -> None:
        self._watch = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()


def derived(
    struct: type[Struct], added: Mapping[str, Any], *, strictly: bool = False
) -> type[Struct]:
    """A subclass of `struct` that also takes the `added` fields, or `struct` itself without any.

    They go by dotted path to type, at any depth, and are null if left out. `strictly`: the subclass
    takes no other fields. One of several structs in a union has the fields of the others too, as
    null. Fields that are left undecoded (`msgspec.Raw`) or are taken whole (a dict) do not change.
    """
    own_names = struct.__struct_encode_fields__
    fields: list[Any] = [
        (name, kind, None)
        for name, kind in added.items()
        if "." not in name and name not in own_names
    ]
    for field in msgspec.structs.fields(struct):
        kind = _mapped(field.type, _below(added, field.name), strictly=strictly)
        if kind is not field.type:
            default = () if field.required else (_default(field),)
            fields.append((field.name, kind, *default))
    if not fields and not strictly:
        return struct
    own = struct.__struct_config__
    made = msgspec.defstruct(
        struct.__name__,
        fields,
        bases=(struct,),
        kw_only=True,
        frozen=own.frozen,
        gc=own.gc,
        tag=own.tag,
        tag_field=own.tag_field,
        forbid_unknown_fields=strictly or own.forbid_unknown_fields,
    )
    return cast("type[Struct]", made)


def _below(added: Mapping[str, Any], name: str) -> dict[str, Any]:
    prefix = f"{name}."
    return {
        path.removeprefix(prefix): kind for path, kind in added.items() if path.startswith(prefix)
    }


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


def _mapped(kind: Any, added: Mapping[str, Any], *, strictly: bool) -> Any:
    """`kind` with every struct in it derived. `kind` itself where nothing changes."""
    if _is_struct(kind):
        return derived(kind, added, strictly=strictly)
    origin: Any = get_origin(kind)
    parts: tuple[Any, ...] = get_args(kind)
    if origin is Annotated:
        inner = _mapped(parts[0], added, strictly=strictly)
        return kind if inner is parts[0] else Annotated[(inner, *parts[1:])]
    others = _fields_of_several(parts)
    mapped = tuple(_mapped(part, {**others, **added}, strictly=strictly) for part in parts)
    if all(new is old for new, old in zip(mapped, parts, strict=True)):
        return kind
    return (Union if origin is types.UnionType else origin)[mapped]


def _fields_of_several(kinds: tuple[Any, ...]) -> dict[str, None]:
    """The fields of all structs in a union of several: what another would obey must not be lost."""
    structs = [kind for kind in kinds if _is_struct(kind)]
    if len(structs) < 2:
        return {}
    return {name: None for struct in structs for name in struct.__struct_encode_fields__}


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
