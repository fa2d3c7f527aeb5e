"""The bytes that one API process holds for its clients, under one bound.

A request opens an account wherever it holds much: its undecoded body, a conversation that waits for
its chat template, texts to tokenize, log-probabilities. Answers that are sent and not read count
beside them (`server/http/wire.py`).

Beyond the bound the larger side gives way. Of requests that is the largest one of the API key that
holds most: it is refused. Of unread answers it is the one that is read most slowly: it is cut off.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from engine_core.refusal import RefusalError

REQUEST_BYTES = 16 << 10
"""The size of a request's task, headers and connection."""


class Ledger:
    """Bytes of open accounts and of unread answers. A lone account may exceed the bound, and so may
    an answer that is read steadily."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._accounts: dict[Account, None] = {}
        self._of_keys: Counter[int] = Counter()
        self._held = 0
        self.unread = 0
        """Bytes of unread answers."""
        self.cut_unread: Callable[[int], None] = lambda _: None
        """Cuts off answers of this many bytes, the slowest first."""

    @property
    def num_bytes(self) -> int:
        return self._held + self.unread

    def account(self, key: int, purpose: str) -> "Account":
        """Make an account for a request of an API key (0 without keys), which refusals call
        `purpose`."""
        return Account(self, key, purpose)

    def move(self, account: "Account", more: int) -> None:
        """Note that `account` holds `more` (possibly negative)."""
        self._held += more
        self._of_keys[account.key] += more
        if account.num_bytes:
            self._accounts[account] = None
        else:
            self._accounts.pop(account, None)

    def make_room(self) -> None:
        """Have clients give way until the bound is kept. Raises RefusalError `overloaded` if that
        is the caller's own."""
        while (excess := self.num_bytes - self._max_bytes) > 0:
            if self.unread > self._held:
                self.cut_unread(excess)
                return
            if len(self._accounts) == 1:
                return
            self._largest().refuse(self._max_bytes)

    def _largest(self) -> "Account":
        """The largest account of the key that holds most, of several the newest."""
        of_keys = self._of_keys
        return max(reversed(self._accounts), key=lambda each: (of_keys[each.key], each.num_bytes))


class Account:
    """Bytes that one request holds within its block. A block that is cancelled for a refusal raises
    RefusalError `overloaded`."""

    def __init__(self, ledger: Ledger, key: int, purpose: str) -> None:
        self._ledger, self.key, self._purpose = ledger, key, purpose
        self._refusal = ""
        self.num_bytes = 0

    def hold(self, num_bytes: int) -> None:
        """Hold this much from now on, beside REQUEST_BYTES. Raises RefusalError `overloaded` if it
        is refused for that."""
        self._move(REQUEST_BYTES + num_bytes)
        self._ledger.make_room()

    def refuse(self, max_bytes: int) -> None:
        """Hold nothing any more, and end the block with a refusal. It is raised here in the block's
        own task, which any other task cancels."""
        self._refusal = (
            f"this server holds as much as it may (--max-unread-size), {max_bytes} bytes, "
            f"{self.num_bytes} of them for {self._purpose}; try again later"
        )
        self._move(0)
        if asyncio.current_task() is self._task:
            raise RefusalError("overloaded", self._refusal)
        self._task.cancel()

    def _move(self, num_bytes: int) -> None:
        more, self.num_bytes = num_bytes - self.num_bytes, num_bytes
        if more:
            self._ledger.move(self, more)

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that uses the block is run by a task"
        self._task = task
        self.hold(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._move(0)
        # It may have been alone beyond the bound, and unread answers the smaller side.
        self._ledger.make_room()
        if self._refusal and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise RefusalError("overloaded", self._refusal) from None
