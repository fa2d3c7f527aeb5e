"""Body types derived from the schemas: with refused options, without unknown fields."""

import types
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import msgspec

Struct = TypeVar("Struct", bound=msgspec.Struct)


def derived(
    struct: type[Struct], added: Mapping[str, Any] | None = None, *, strictly: bool = False
) -> type[Struct]:
    """A subclass of `struct` that also takes the `added` fields (dotted path -> type), null if left
    out, and if `strictly` no others, at any depth; `struct` itself where nothing changes. One of
    several structs in a union has the fields of the others too, as null.

    Fields that are left undecoded (`msgspec.Raw`) or are taken whole (a dict) do not change.
    """
    added = added or {}
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
    """The fields added to the structs in the field `name`."""
    prefix = f"{name}."
    return {
        path.removeprefix(prefix): kind for path, kind in added.items() if path.startswith(prefix)
    }


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


def _mapped(kind: Any, added: Mapping[str, Any], *, strictly: bool) -> Any:
    """`kind` with every struct in it derived; `kind` itself where nothing changes."""
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
    """The fields of all structs in a union, if there are several: what another one would obey must
    not be lost."""
    structs = [kind for kind in kinds if _is_struct(kind)]
    if len(structs) < 2:
        return {}
    return {name: None for struct in structs for name in struct.__struct_encode_fields__}


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
