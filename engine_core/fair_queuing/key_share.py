"""The API key that a job came with, as far as an engine needs to know it."""

import msgspec


class KeyShare(msgspec.Struct, array_like=True, frozen=True):
    """Its number, 0 where there are no others, and its weight beside others."""

    number: int = 0
    weight: float = 1.0


NO_KEY = KeyShare()
