# pyright: reportUnknownVariableType=false
"""Checkpoints of the Hugging Face hub, through huggingface_hub (whose types are incomplete)."""

from pathlib import Path

from huggingface_hub import constants, errors, snapshot_download

_FOLDERS_NOT_READ = ["original/*", "onnx/*", "openvino/*"]


class HubError(ValueError):
    """A model cannot be fetched; one line says what was looked for, where, and what happened."""


def fetch(hub_id: str, patterns: list[str]) -> Path:
    """The folder with those files of a model that match `patterns`, downloaded where needed.

    Offline it is what the cache holds, even if that is not all. Raises HubError.
    """
    try:
        folder = snapshot_download(
            hub_id, allow_patterns=patterns, ignore_patterns=_FOLDERS_NOT_READ
        )
    except errors.HFValidationError:
        raise HubError(f"{hub_id} is neither a folder nor a hub id") from None
    except errors.GatedRepoError:
        raise HubError(
            f"{hub_id} is gated: accept its terms on its page, then `hf auth login`"
        ) from None
    except errors.RepositoryNotFoundError:
        raise HubError(
            f"there is no folder {hub_id}, and the hub shows no model of that name"
        ) from None
    except errors.LocalEntryNotFoundError as error:
        # Later versions of the hub's client name what they have of an incomplete snapshot.
        partial: str | None = getattr(error, "snapshot_path", None)
        if partial:
            return Path(partial)
        raise HubError(
            f"there is no folder {hub_id}; its config.json is not in {constants.HF_HUB_CACHE}, "
            f"and the hub cannot be reached: {_reason(error)}"
        ) from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise HubError(f"{hub_id} cannot be fetched: {_reason(error)}") from None
    return Path(folder)


def _reason(error: Exception) -> str:
    return str(error.__cause__ or error).splitlines()[0]
