"""What messages call a setting: `--port`, or `penstock.yaml: models[0].device`."""

import msgspec

from server.settings.engine_settings import EngineSettings

LIST_FLAGS = {
    "api_key_files": "--api-key-file",
    "cors_origins": "--cors-origin",
    "share_prefixes": "--share-prefixes",
    "names": "--served-model-name",
}
"""Flags of lists: each is given once for each item."""

RETIRED = {
    "max_requests": "max_sequences bounds what is in flight, max_unread_size what is held for it",
    "max_reading_size": "max_unread_size bounds all that a process holds, bodies on their way too",
    "no_groups": "prompts share by token, and nothing without prefix caching",
}
"""Settings that are gone, and what there is instead."""


class SettingNames(msgspec.Struct, frozen=True, kw_only=True):
    """What messages call a setting: its flag, or its key in `file`.

    `flags` are the keys whose values come from flags although there is a file.
    """

    file: str | None = None
    flags: frozenset[str] = frozenset()

    def of(self, key: str, model: int | None = None) -> str:
        """A key's name, such as `--port`, or `penstock.yaml: models[0].device`."""
        if self.file is None or (model is None and key in self.flags):
            return flag_name(key)
        return f"{self.file}: {key}" if model is None else f"{self.file}: models[{model}].{key}"

    def inside(self, key: str, model: int | None = None) -> str:
        """A key's name inside a sentence, such as `models[0].device of penstock.yaml`."""
        where, _, path = self.of(key, model).rpartition(": ")
        return f"{path} of {where}" if where else path

    def of_engine(self, model: int) -> dict[str, str]:
        """What messages of an engine call the settings of model number `model`, by key."""
        keys = (*EngineSettings.__struct_fields__, "memory_share")
        names = {key: self.inside(key, model) for key in keys}
        return names | {"stall_timeout": self.inside("stall_timeout")}

    def prefix(self, key: str, model: int | None = None) -> str:
        """Begins a message that need not name a flag: empty without a file, else the key in it."""
        return "" if self.file is None else f"{self.of(key, model)}: "


def flag_name(key: str) -> str:
    """The flag that sets `key`."""
    return LIST_FLAGS.get(key) or "--" + key.replace("_", "-")
