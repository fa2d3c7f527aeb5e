"""Reading the keys of a JSON object: by other names, inside other objects, and all of them."""

from pathlib import Path
from typing import Any

import pytest

from workers.contract.checkpoint.config_keys import ConfigKeys
from workers.contract.model_config import ModelConfigError

FILE = Path("config.json")


def refusal(keys: ConfigKeys) -> str:
    with pytest.raises(ModelConfigError) as error:
        keys.check_all_read()
    return str(error.value)


def test_a_key_that_nothing_has_read() -> None:
    keys = ConfigKeys(FILE, {"read": 1, "torch_dtype": "float16", "absent": None, "unread": [1]})
    keys.size("read")
    assert refusal(keys) == "config.json: unread [1] is not known for this architecture"
    keys.ignore("unread")
    keys.check_all_read()


def test_keys_within_an_object_are_all_read_too() -> None:
    values = {"text_config": {"hidden_size": 8, "is_decoder": False, "unread": 2}}
    keys = ConfigKeys(FILE, values)
    text = keys.nested("text_config")
    assert text.size("hidden_size") == 8
    assert refusal(keys) == "config.json: text_config.unread 2 is not known for this architecture"
    with pytest.raises(ModelConfigError, match=r"^config\.json has no 'text_config\.vocab_size'$"):
        text.size("vocab_size")
    assert keys.nested("vision_config").optional_size("hidden_size") is None


def test_what_no_family_obeys_is_refused_within_an_object() -> None:
    values: dict[str, Any] = {"text_config": {"quantization_config": {"quant_method": "awq"}}}
    with pytest.raises(ModelConfigError, match=r"^config\.json: text_config\.quantization_config "):
        ConfigKeys(FILE, values).nested("text_config")


def test_a_familys_own_names() -> None:
    keys = ConfigKeys(FILE, {"dim": 8, "num_hidden_layers": 2})
    keys.spell({"hidden_size": "dim", "num_hidden_layers": "n_layers", "vocab_size": "words"})
    assert (keys.size("hidden_size"), keys.size("num_hidden_layers")) == (8, 2)
    with pytest.raises(ModelConfigError, match=r"^config\.json has no 'words'$"):
        keys.size("vocab_size")
    keys.check_all_read()


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
def test_what_is_not_a_size(value: Any) -> None:
    with pytest.raises(ModelConfigError, match=r"^config\.json: hidden_size "):
        ConfigKeys(FILE, {"hidden_size": value}).size("hidden_size")
