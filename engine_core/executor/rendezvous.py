"""The store by which the stages' process groups find each other.

The workers' end is `workers/links/store.py`.
"""

from workers.contract.messages import StoreAnswer, StoreCall


class RendezvousStore:
    """Answers calls of `torch.distributed.Store` from memory. None waits: who needs a key that is
    not set asks again."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def answer(self, call: StoreCall) -> StoreAnswer:
        """Raises ValueError for an addition to what is no number."""
        return StoreAnswer(self._done(call))

    def _done(self, call: StoreCall) -> bytes | int | bool | None:
        values, key = self._values, call.key
        match call.method:
            case "set":
                values[key] = call.value
            case "get":
                return values.get(key)
            case "compare_set":
                return self._compare_set(call)
            case "add":
                total = int(values.get(key, b"0")) + call.amount
                values[key] = b"%d" % total
                return total
            case "check":
                return values.keys() >= set(call.keys)
            case "delete":
                return values.pop(key, None) is not None
            case "num_keys":
                return len(values)
        return None

    def _compare_set(self, call: StoreCall) -> bytes:
        """The key's value then. One that is not set is set if nothing was expected."""
        held = self._values.get(call.key)
        if held == call.expected or (held is None and not call.expected):
            self._values[call.key] = held = call.value
        return call.expected if held is None else held
