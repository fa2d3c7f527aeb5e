"""What is wrong with a model, or with its settings."""

from server.settings.settings import flag_name


class SetupError(ValueError):
    """The setting `key` does not suit the model or other settings; `reason` is one line."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{flag_name(key)}: {reason}")
        self.key = key
        self.reason = reason


class ModelSourceError(ValueError):
    """A model is not found or its checkpoint is incomplete or broken; one line says which file."""
