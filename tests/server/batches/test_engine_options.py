import pytest

from server.batches.batch_llm import BatchLLM, engine_options


def test_settings_are_those_of_a_model() -> None:
    options = engine_options({"threads": 2, "kv_cache_memory": "64MiB", "stage_layers": [2, 2]})
    assert (options.threads, options.kv_cache_memory, options.stage_layers) == (2, 64 << 20, (2, 2))
    assert options.setting_names["pipeline_stages"] == "pipeline_stages"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"treads": 2}, "treads: there is no such setting"),
        ({"threads": 0}, "threads: "),
        ({"kv_cache_memory": "much"}, "kv_cache_memory: "),
        ({"stall_timeout": 3.0}, "stall_timeout: there is no such setting"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        engine_options(settings)


def test_a_model_or_a_url() -> None:
    with pytest.raises(ValueError, match="model: name a folder"):
        BatchLLM()
    with pytest.raises(ValueError, match="threads: a daemon at a url"):
        BatchLLM(url="http://localhost:8000", threads=1)
    with pytest.raises(ValueError, match="url: "), BatchLLM(url="localhost"):
        pass
    with pytest.raises(RuntimeError, match="inside its block"):
        BatchLLM(url="http://localhost:8000").generate(["a"])
