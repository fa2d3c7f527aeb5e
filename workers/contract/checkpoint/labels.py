"""Reads the labels of a classifier, and what its scores are, from `config.json`."""

from typing import Any

from workers.contract.config_keys.keys import MOST_WIDTH, ConfigKeys


def read_labels(keys: ConfigKeys) -> tuple[str, ...]:
    """The labels' names; without names in the file, those that transformers makes up. Raises
    ModelConfigError."""
    names = keys.read("id2label", dict[str, Any], {})
    count = len(names) or keys.count("num_labels", 2, MOST_WIDTH)
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(count))


def read_sigmoid_scores(keys: ConfigKeys, declared: str | None) -> bool:
    """Whether the sigmoid turns each logit into a probability. Raises ModelConfigError.

    One label: yes, unless its activation is the identity (sentence-transformers' rule). Several
    labels: if their activation is the sigmoid, or the checkpoint is a multi-label classifier.
    `declared` has precedence over keys that earlier versions of the library wrote into
    `config.json`.
    """
    settings = keys.read("sentence_transformers", dict[str, Any], {})
    earlier = keys.read("sbert_ce_default_activation_function", str, "")
    activation = str(declared or settings.get("activation_fn") or earlier)
    several = len(read_labels(keys)) > 1
    usual = not several or keys.read("problem_type", str, "") == "multi_label_classification"
    if not activation:
        return usual
    means = {"Identity": several and usual, "Sigmoid": True}
    if several:
        means["Softmax"] = False
    module, _, name = activation.rpartition(".")
    if name not in means or not module.startswith("torch.nn"):
        raise keys.error(f"activation function {activation} is not supported")
    return means[name]
