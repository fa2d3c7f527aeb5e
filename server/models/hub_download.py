# pyright: reportUnknownVariableType=false
"""Checkpoints of the Hugging Face hub, through huggingface_hub (whose types are incomplete)."""

from pathlib import Path

from huggingface_hub import constants, errors, snapshot_download

from server.models.model_source import ModelSourceError

_FOLDERS_NOT_READ = ["original/*", "onnx/*", "openvino/*"]


def fetch(hub_id: str, patterns: list[str]) -> Path:
    """Download the files of a model that match `patterns`, and return their folder.

    Files in the cache are not downloaded again; offline, the folder may be incomplete. Raises
    ModelSourceError, which says from where and why.
    """
    try:
        folder = snapshot_download(
            hub_id, allow_patterns=patterns, ignore_patterns=_FOLDERS_NOT_READ
        )
    except errors.HFValidationError:
        raise ModelSourceError(f"{hub_id} is neither a folder nor a hub id") from None
    except errors.GatedRepoError:
        raise ModelSourceError(
            f"{hub_id} is gated: accept its terms on its page, then `hf auth login`"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelSourceError(
            f"there is no folder {hub_id}, and the hub shows no model of that name"
        ) from None
    except errors.LocalEntryNotFoundError as error:
        # Later versions of the hub's client name what they have of an incomplete snapshot.
        partial: str | None = getattr(error, "snapshot_path", None)
        if partial:
            return Path(partial)
        raise ModelSourceError(
            f"there is no folder {hub_id}; its config.json is not in {constants.HF_HUB_CACHE}, "
            f"and the hub cannot be reached: {_reason(error)}"
        ) from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise ModelSourceError(f"{hub_id} cannot be fetched: {_reason(error)}") from None
    return Path(folder)


def has_files(hub_id: str, pattern: str) -> bool:
    """Whether the hub has files of a model that match `pattern`. False if it cannot be asked."""
    try:
        return bool(snapshot_download(hub_id, allow_patterns=[pattern], dry_run=True))
    except (errors.HfHubHTTPError, OSError):
        return False


def _reason(error: Exception) -> str:
    return str(error.__cause__ or error).splitlines()[0]
