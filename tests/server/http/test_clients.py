"""OpenAI's SDK and a stream that fails; what it does otherwise is in tests/clients."""

import openai
import pytest


def test_openai_stream_that_fails(client, deployment, say):
    say("The quick brown fox")
    deployment.engines["writer"].script.fail_after = 1
    deployment.engines["writer"].script.step_seconds = 0.01
    with pytest.raises(openai.APIError, match="no finite result"):
        list(client.completions.create(model="writer", prompt="a", stream=True))
