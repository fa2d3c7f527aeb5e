"""Code that comes with a checkpoint (`auto_map` in its `config.json`), which is never run."""

from typing import Any

from workers.contract.config import Task
from workers.contract.config_keys.keys import ConfigKeys, Refuse
from workers.contract.families.base import Family


def own_models(keys: ConfigKeys) -> tuple[str, ...]:
    """The classes of models that the checkpoint brings, such as `modeling_qwen.Qwen2Model`. Raises
    ModelConfigError."""
    classes = keys.read("auto_map", dict[str, Any], {})
    own = (str(path) for name, path in classes.items() if name.startswith("AutoModel"))
    return tuple(dict.fromkeys(own))


def check_own_code(keys: ConfigKeys, family: Family, task: Task, refuse: Refuse) -> None:
    """Refuse an embedder or a reranker with a model of its own that the family does not know.

    Under the name of a known architecture such code often attends in both directions. A generator's
    cannot: it is an earlier form of what transformers has today.
    """
    unknown = [own for own in own_models(keys) if _module(own) not in family.known_code]
    if unknown and task != "generate":
        reason = (
            f"names {unknown[0]}: code that comes with a checkpoint is never run, and this may "
            f"compute another model than {family.name}; if it does not, ignore_config_keys may "
            "name auto_map"
        )
        refuse(keys.refusal("auto_map", reason))


def _module(path: str) -> str:
    """`modeling_qwen` of `owner/name--modeling_qwen.Qwen2Model`."""
    return path.rpartition("--")[2].rpartition(".")[0]
