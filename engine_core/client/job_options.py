"""What most jobs leave open, of either kind."""

import msgspec

from engine_core.fair_queuing.key_share import NO_KEY, KeyShare
from engine_core.messages import Tokenization


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of these names of a `GenerateJob` or `EncodeJob`."""

    cache_salt: str = ""
    tokenization: Tokenization = Tokenization()
    priority: int = 0
    key: KeyShare = NO_KEY


NO_OPTIONS = JobOptions()
