"""The names of fields in a request that becomes one of chat, for refusals and what is left out."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from engine_core.refusal import RefusalError
from server.observe.request_record import RequestRecord
from server.schemas.common import renamed


class OwnFields(NamedTuple):
    """The fields that a request has for those of chat.

    prompt    the one of which the prompt is made
    paths     field of chat -> the request's own, for the fields below it, too
    left_out  own fields that have no effect
    """

    prompt: str
    paths: Mapping[str, str]
    left_out: Sequence[str]

    def of(self, path: str) -> str:
        """The request's own name of a field of chat. The longest known beginning is looked up."""
        if path.startswith("prompt"):
            return self.prompt
        path = known = path.removesuffix(".role")
        while known and known not in self.paths:
            known = known[: max(known.rfind("."), known.rfind("["), 0)]
        return self.paths[known] + path[len(known) :] if known else path

    @contextmanager
    def named(self, record: RequestRecord) -> Generator[None]:
        """A block whose failure names the request's own fields, and so does what it leaves out.
        Raises RefusalError."""
        try:
            yield
        except RefusalError as error:
            if error.param is None:
                raise
            raise renamed(error, error.param, self.of(error.param)) from None
        record.ignored = (*self.left_out, *map(self.of, record.ignored))
