"""Body types that refuse the fields they do not know, made from those that ignore them."""

import types
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import msgspec

Struct = TypeVar("Struct", bound=msgspec.Struct)


def strict(struct: type[Struct]) -> type[Struct]:
    """A subclass of `struct` that takes the same fields and no others, at any depth.

    What a field leaves undecoded (`msgspec.Raw`) or takes whole (a dict) stays as open as it is.
    """
    fields = msgspec.structs.fields(struct)
    own = struct.__struct_config__
    closed = msgspec.defstruct(
        struct.__name__,
        [
            (field.name, _closed(field.type), _default(field))
            if not field.required
            else (field.name, _closed(field.type))
            for field in fields
            if _closed(field.type) is not field.type
        ],
        bases=(struct,),
        kw_only=True,
        frozen=own.frozen,
        tag=own.tag,
        tag_field=own.tag_field,
        forbid_unknown_fields=True,
    )
    return cast("type[Struct]", closed)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


def _closed(kind: Any) -> Any:
    """`kind` with every struct in it closed; `kind` itself where there is none."""
    if _is_struct(kind):
        return strict(kind)
    origin: Any = get_origin(kind)
    parts: tuple[Any, ...] = get_args(kind)
    if origin is Annotated:
        inner = _closed(parts[0])
        return kind if inner is parts[0] else Annotated[(inner, *parts[1:])]
    closed = tuple(map(_closed, parts))
    if all(new is old for new, old in zip(closed, parts, strict=True)):
        return kind
    return _union(closed) if origin in (Union, types.UnionType) else origin[closed]


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _union(kinds: tuple[Any, ...]) -> Any:
    union = kinds[0]
    for kind in kinds[1:]:
        union |= kind
    return union
