"""Keys of a model's files that a person allows to stay unread (`ignore_config_keys`)."""

from collections.abc import Sequence
from pathlib import Path

from server.models.setup_error import SetupError
from workers.contract.checkpoint.config_keys import Refuse, stop
from workers.contract.model_config import ModelConfigError, UnsupportedKeyError

_FILES = ("config.json", "generation_config.json", "tokenizer_config.json")


class IgnoredKeys:
    """Takes down which of `names` would be refused in the files of `folder`; all else that is
    refused goes to `refuse`."""

    def __init__(self, names: Sequence[str], folder: Path, refuse: Refuse = stop) -> None:
        self._names, self._files = names, [folder / name for name in _FILES]
        self._refuse = refuse
        self._met: set[str] = set()

    def refuse(self, error: ModelConfigError) -> None:
        """A reader's `Refuse`."""
        match error:
            case UnsupportedKeyError(file=file, key=key) if (
                file in self._files and key in self._names
            ):
                self._met.add(key)
            case _:
                self._refuse(error)

    def check(self) -> None:
        """Raises SetupError, once all files are read, for a name without effect."""
        idle = [name for name in self._names if name not in self._met]
        if idle:
            reason = f"{', '.join(idle)}: none of {', '.join(_FILES)} has such a key to refuse"
            raise SetupError("ignore_config_keys", reason)
