"""An embedder's scores, by the similarity that its checkpoint names."""

import msgspec
import numpy as np
import pytest
from sentence_transformers.util import SimilarityFunction

from server.api.embeddings import shorten, similarity
from tests.engine_core.configs import MODEL
from tests.server.conftest import DeploymentBuilder
from tests.server.fake_engine import LENGTH, vector_of
from tests.server.support import server_config
from workers.contract.model_config import EmbeddingConfig, NormalizeConfig

SIZE = 4


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("queries", [1, 5])
def test_as_sentence_transformers(kind, normalize: bool, queries: int) -> None:
    draw = np.random.default_rng(3)
    first = draw.normal(size=(queries, SIZE)).astype(np.float32)
    second = draw.normal(size=(5, SIZE)).astype(np.float32)
    config = msgspec.structs.replace(
        MODEL,
        hidden_size=SIZE,
        modules=(NormalizeConfig(),) * normalize,
        embedding=EmbeddingConfig(similarity=kind),
    )
    pairwise = SimilarityFunction.to_similarity_pairwise_fn(kind)
    own = [
        shorten(pooled, SIZE, normalize=normalize)
        for pooled in (first.repeat(5 // queries, 0), second)
    ]
    ours = similarity(first, second, config)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, pairwise(*own), rtol=1e-5, atol=1e-6)


def test_scores_are_those_of_the_models_own_similarity(folder, tokenizer) -> None:
    builder = DeploymentBuilder(folder, tokenizer)
    served = builder.model("long", "embed")
    model = msgspec.structs.replace(
        served.execution.model,
        modules=(),
        embedding=EmbeddingConfig(similarity="dot"),
    )
    execution = msgspec.structs.replace(served.execution, model=model)
    engine = msgspec.structs.replace(served.engine, execution=execution)
    deployment = builder.open(server_config(msgspec.structs.replace(served, engine=engine)))
    response = deployment.post("/v1/score", {"text_1": "a", "text_2": ["b", "c"]})
    scores = [entry["score"] for entry in response.json()["data"]]
    builder.close()
    expected = [LENGTH**2 * float(vector_of("a", 8) @ vector_of(text, 8)) for text in ("b", "c")]
    assert scores == pytest.approx(expected, rel=1e-5)
