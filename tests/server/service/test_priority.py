"""Which priorities a request may name."""

import pytest

from server.settings.settings import Limits
from tests.server.conftest import DeploymentBuilder
from tests.server.support import server_config

REQUESTS = {
    "/v1/completions": {"model": "writer", "prompt": "The", "max_tokens": 1},
    "/v1/embeddings": {"model": "embedder", "input": "The"},
    "/v1/rerank": {"model": "ranker", "query": "The", "documents": ["fox"]},
    "/v1/score": {"model": "ranker", "text_1": "The", "text_2": "fox"},
    "/v1/classify": {"model": "ranker", "input": "The"},
}


@pytest.mark.parametrize(
    ("allowed", "taken", "refused", "named"),
    [
        (None, [0, None], [-1, 1], "--priority-range"),
        ((-2, 1), [-2, 0, 1], [-3, 2], "from -2 to 1"),
    ],
)
def test_a_priority_outside_the_range_is_refused(
    builder: DeploymentBuilder,
    allowed: tuple[int, int] | None,
    taken: list[int | None],
    refused: list[int],
    named: str,
) -> None:
    models = [
        builder.model("writer", "generate"),
        builder.model("embedder", "embed"),
        builder.model("ranker", "classify"),
    ]
    deployment = builder.open(server_config(*models, limits=Limits(priority_range=allowed)))
    for path, body in REQUESTS.items():
        for priority in taken:
            assert deployment.post(path, {**body, "priority": priority}).status_code == 200, path
        for priority in refused:
            answer = deployment.post(path, {**body, "priority": priority})
            assert answer.status_code == 400, path
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("invalid_request", "priority")
            assert named in error["message"]
