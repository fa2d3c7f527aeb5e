"""Requests of every kind that a daemon's OpenAPI document describes, most of them spoilt somewhere.

An endpoint is drawn, and an example of its body. Some more fields of its schema are set, at times
to a value that the schema allows. Then parts of the body, its bytes, its content type or its
parameters may be spoilt. Uploads hold lines of batches that are made in the same way, and the ids
of files, batches and stored responses that the daemon gave are asked for again.
"""

import copy
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from benchmarks.attacks.target import Target

_GIVEN_ID = re.compile(rb'"id": ?"((?:file-|batch-|resp_|msgbatch_)[^"]+)"')
_MOST_IDS, _MOST_LINES = 64, 8
_TEXTS = (
    "", "hi", "The function returns", "x" * 5000, " " * 300, "\u0301" * 50, "\U0001f600" * 40,
    "a\0b", "\ufeffx", "\u202e\u2066", "\u65e5\u672c\u8a9e" * 100, "\ud800", "\n\r\t" * 30,
    "word " * 900, "\x7f\x1b[31m", "\uffff", "%s%n{}{{7*7}}{% raw %}", "<|bos|><|end|>", "../../x",
    "file-0", "1e3", "null",
)  # fmt: skip
_NUMBERS = (
    0, 1, -1, 2, 20, 21, 128, 129, 1024, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64,
    10**50, 0.5, 1.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
_OTHERS = (None, True, False, [], {}, [None], [[]], {"a": 1}, {"type": "x"}, [1, "a"], {"": {}})
_TYPES = (
    "text/plain", "application/json; charset=utf-16", "multipart/form-data", "", "x" * 9000,
    "multipart/form-data; boundary=" + "b" * 257, "application/x-www-form-urlencoded",
)  # fmt: skip

Schema = Mapping[str, Any]


class Request(NamedTuple):
    """A request as it is sent."""

    method: str
    path: str
    content_type: str
    body: bytes | None


class _Endpoint(NamedTuple):
    method: str
    path: str
    queries: tuple[str, ...]
    content_type: str | None
    schema: Schema
    examples: tuple[Any, ...]


class FuzzedRequests:
    """An endless row of requests, the same for the same document and seed."""

    def __init__(self, document: Mapping[str, Any], seed: int) -> None:
        """`document`: an OpenAPI document, whose references are all to its schemas."""
        self._draw = random.Random(seed)
        self._schemas: Mapping[str, Schema] = document["components"]["schemas"]
        self._endpoints = [
            _endpoint(method, path, described)
            for path, methods in document["paths"].items()
            for method, described in methods.items()
        ]
        self._posted = [at for at in self._endpoints if at.examples]
        self._ids = ["file-0"]

    def __next__(self) -> Request:
        # Half of an API's endpoints have no body: those that have one have more to be tried.
        endpoint = self._draw.choice(self._posted if self._one_in(2) else self._endpoints)
        path = re.sub(r"\{\w+\}", lambda _: quote(self._id(), "", errors="replace"), endpoint.path)
        if endpoint.queries and self._one_in(2):
            name = self._draw.choice(endpoint.queries)
            path += f"?{name}={quote(str(self._spoilt()), errors='replace')}"
        if endpoint.content_type is None:
            return Request(endpoint.method, path, "", None)
        if endpoint.examples:
            content_type, body = endpoint.content_type, self._json(self._body(endpoint))
        else:
            content_type, body = self._upload()
        if self._one_in(25):
            content_type = self._draw.choice(_TYPES)
        return Request(endpoint.method, path, content_type, self._cut(body))

    def send(self, target: Target) -> int:
        """Send the next one, and remember the ids that the answer gives. Returns its status."""
        request = next(self)
        headers = {**target.headers(), "content-type": request.content_type}
        status, answer = target.answer(request.method, request.path, request.body, headers)
        self._ids += [found.decode() for found in _GIVEN_ID.findall(answer)]
        del self._ids[:-_MOST_IDS]
        return status

    def _body(self, endpoint: _Endpoint) -> Any:
        body = copy.deepcopy(self._draw.choice(endpoint.examples))
        fields = self._properties(endpoint.schema)
        count = min(len(fields), self._draw.choice((0, 1, 1, 3)))
        for name in self._draw.sample(sorted(fields), count):
            body[name] = self._spoilt() if self._one_in(4) else self._value(fields[name])
        return self._with_spoilt_part(body) if self._one_in(3) else body

    def _properties(self, schema: Schema) -> Mapping[str, Schema]:
        return self._resolved(schema).get("properties", {})

    def _resolved(self, schema: Schema) -> Schema:
        while (reference := schema.get("$ref")) is not None:
            schema = self._schemas[reference.rpartition("/")[2]]
        return schema

    def _value(self, schema: Schema, depth: int = 0) -> Any:
        """A value that the schema allows, or nearly."""
        schema = self._resolved(schema)
        if depth > 4:
            return None
        if (choices := schema.get("anyOf") or schema.get("oneOf")) is not None:
            return self._value(self._draw.choice(choices), depth)
        if "enum" in schema or "const" in schema:
            return self._draw.choice(schema.get("enum") or [schema["const"]])
        makers: dict[str, Callable[[], Any]] = {
            "boolean": lambda: self._one_in(2),
            "integer": lambda: self._number(schema, 1),
            "number": lambda: self._number(schema, 0.37),
            "string": lambda: self._id() if self._one_in(3) else self._draw.choice(_TEXTS),
            "array": lambda: self._array(schema, depth),
            "object": lambda: self._object(schema, depth),
        }
        of_type = schema.get("type", "")
        if isinstance(of_type, list):
            of_type = self._draw.choice(cast(list[str], of_type))
        return makers.get(of_type, self._spoilt)()

    def _number(self, schema: Schema, step: float) -> float:
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema.get("maximum", low + 50)
        # Most small: what is asked for is also done.
        return self._draw.choice((low, low + step, min(high, low + 3 * step), high, high + step))

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        count = self._draw.choice((0, 1, 1, 2, 5))
        return [self._value(schema.get("items", {}), depth + 1) for _ in range(count)]

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        fields = self._properties(schema)
        required = schema.get("required", ())
        names = [name for name in fields if name in required or self._one_in(3)]
        others = schema.get("additionalProperties")
        made = {name: self._value(fields[name], depth + 1) for name in names}
        if isinstance(others, dict) and others:
            made[str(self._spoilt())] = self._value(cast(Schema, others), depth + 1)
        return made

    def _spoilt(self) -> Any:
        return copy.deepcopy(self._draw.choice(self._draw.choice((_TEXTS, _NUMBERS, _OTHERS))))

    def _with_spoilt_part(self, value: Any) -> Any:
        """The same, but for one part at any depth: another value, doubled, gone or nested."""
        if isinstance(value, dict) and value and not self._one_in(5):
            fields = cast(dict[str, Any], value)
            name = self._draw.choice(list(fields))
            part = fields.pop(name)
            if not self._one_in(6):
                name = str(self._spoilt()) if self._one_in(6) else name
                fields[name] = self._with_spoilt_part(part)
            return fields
        if isinstance(value, list) and value and not self._one_in(5):
            items = cast(list[Any], value)
            at = self._draw.randrange(len(items))
            items[at : at + 1] = [self._with_spoilt_part(items[at])] * self._draw.choice(
                (1, 1, 2, 40)
            )
            return items
        if self._one_in(4):
            return self._draw.choice(([value], {"a": value}, {"type": "text", "text": value}))
        return self._spoilt()

    def _upload(self) -> tuple[str, bytes]:
        boundary = "b" * self._draw.choice((1, 8, 70, 71, 257))
        lines = b"\n".join(self._line() for _ in range(self._draw.randrange(_MOST_LINES)))
        name = self._draw.choice(("a.jsonl", "", "../x"))
        fields = [("file", f'; filename="{name}"', self._cut(lines))]
        purpose = str(self._spoilt()) if self._one_in(5) else "batch"
        fields += [("purpose", "", purpose.encode(errors="replace"))]
        if self._one_in(4):
            fields += [(str(self._spoilt()), "", str(self._spoilt()).encode(errors="replace"))]
        data = b""
        for name, more, content in fields:
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
            data += head.encode(errors="replace") + content + b"\r\n"
        return f"multipart/form-data; boundary={boundary}", data + f"--{boundary}--\r\n".encode()

    def _line(self) -> bytes:
        endpoint = self._draw.choice(self._posted)
        line = {"custom_id": self._id(), "method": "POST", "url": endpoint.path}
        line |= {"body": self._body(endpoint)}
        return self._json(self._with_spoilt_part(line) if self._one_in(5) else line)

    def _id(self) -> str:
        return self._draw.choice(self._ids) if self._one_in(2) else str(self._spoilt())

    @staticmethod
    def _json(value: Any) -> bytes:
        return json.dumps(value).encode()

    def _cut(self, body: bytes) -> bytes:
        """At times some bytes are others, gone or new."""
        if not body or not self._one_in(15):
            return body
        at = self._draw.randrange(len(body))
        new = self._draw.randbytes(self._draw.randrange(6))
        return body[:at] + new + body[at + self._draw.choice((0, 1, 9, 10**6)) :]

    def _one_in(self, count: int) -> bool:
        return self._draw.randrange(count) == 0


def _endpoint(method: str, path: str, described: Mapping[str, Any]) -> _Endpoint:
    queries = [each["name"] for each in described.get("parameters", ()) if each["in"] == "query"]
    content: dict[str, Any] = described.get("requestBody", {}).get("content", {})
    content_type, body = next(iter(content.items()), (None, {}))
    examples = tuple(example["value"] for example in body.get("examples", {}).values())
    schema = body.get("schema", {})
    return _Endpoint(method.upper(), path, tuple(queries), content_type, schema, examples)
