"""Refusals of paths that nothing is at, which name what is served in their place.

Such a path is an endpoint of another server (`foreign_endpoints.toml`), one of our own behind
another beginning, or one that is misspelt.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import resources

import msgspec

from engine_core.refusal import RefusalError
from server.errors import quoted, shortened
from server.service.endpoint import Endpoint

_LIKENESS = 0.8
_ROOT = "/v1"


class UnknownPaths:
    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        """`endpoints` are those that are served, the best known first."""
        text = (resources.files("server.http") / "foreign_endpoints.toml").read_bytes()
        groups = msgspec.toml.decode(text, type=dict[str, dict[str, str]])
        self.foreign = [
            (pattern, whose, ours)
            for whose, group in groups.items()
            for pattern, ours in group.items()
        ]
        """A pattern of paths, whose they are, and the endpoint that does the same here."""
        self._methods: dict[str, str] = {}
        for endpoint in endpoints:
            self._methods.setdefault(endpoint.path_format, endpoint.method)

    def refusal(self, method: str, path: str) -> RefusalError:
        """The answer to a request for `path`."""
        asked = f"{shortened(method)} {quoted(path)}"
        return RefusalError("not_found", f"{asked} is not served: {self._instead(path)}")

    def _instead(self, path: str) -> str:
        for pattern, whose, ours in self.foreign:
            if fnmatchcase(path, pattern):
                if ours:
                    return f"use {ours} in place of this endpoint of {whose}"
                return f"nothing here does what this endpoint of {whose} does"
        if near := self._nearest(path):
            return f"did you mean {self._methods[near]} {near}?"
        return "/docs lists the paths"

    def _nearest(self, path: str) -> str | None:
        """The path that is meant, with `/v1` left out or something put before it, or misspelt."""
        tails = {known: known.removeprefix(_ROOT) for known in self._methods if known != "/"}
        ending = [known for known, tail in tails.items() if path.endswith(tail)]
        close = get_close_matches(path, self._methods, n=1, cutoff=_LIKENESS)
        return max(ending, key=lambda known: len(tails[known]), default=next(iter(close), None))
