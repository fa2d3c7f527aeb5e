"""What API processes count of each API key, by its name."""

from collections.abc import Sequence
from typing import Final

from server.metrics.families import OTHER, Count, Family
from server.metrics.request_record import RequestRecord

_KEY_COUNTS: Final = {
    "requests": "Requests by the name of their API key.",
    "prompt_tokens": "Tokens of accepted inputs, by the same.",
    "generated_tokens": "Tokens of continuations, by the same.",
}


class KeyMetrics:
    """The counts of one API key."""

    def __init__(self, requests: Count, prompt_tokens: Count, generated_tokens: Count) -> None:
        self._requests = requests
        self._prompt_tokens, self._generated_tokens = prompt_tokens, generated_tokens

    def count(self, record: RequestRecord) -> None:
        """A request of this key is over."""
        self._requests.add()
        self._prompt_tokens.add(record.prompt_tokens)
        self._generated_tokens.add(record.output_tokens)


class KeyFamilies:
    """The families, before they have cells. A key that comes later counts as another."""

    def __init__(self, keys: Sequence[str]) -> None:
        """`keys` are names."""
        self._names = (*dict.fromkeys(keys), OTHER)
        self._families = {
            name: Family(
                "counter", f"penstock_key_{name}", text, {"key": self._names}, shows_zeros=False
            )
            for name, text in _KEY_COUNTS.items()
        }

    def all(self) -> list[Family]:
        """In the order in which they are shown."""
        return list(self._families.values())

    def of_each(self, cells: "memoryview[float]") -> dict[str, KeyMetrics]:
        """The counts of each key, by its name, and of all others."""
        return {
            name: KeyMetrics(*(family.count(cells, name) for family in self.all()))
            for name in self._names
        }
