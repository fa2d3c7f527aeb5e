"""`/info`: the model behind TEI's endpoints."""

from fastapi import Request, Response

from server import __version__
from server.api.classify import CLASSIFY
from server.schemas.tei import ClassifierType, EmbeddingType, Info, ModelType
from server.service.endpoint import Endpoint
from server.service.service import Model, Service, json_answer, record_of, service_of
from server.tei.embed import the_embedder, the_sparse_embedder
from server.tei.operations import tei_operation
from server.tei.tei_errors import tei_errors
from workers.contract.model_config import PoolingConfig

INFO = Endpoint("GET", "/info", tei_operation(Info), order=130)


@INFO.answered_by
@tei_errors
async def get_info(request: Request) -> Response:
    """The model that answers, and the limits of a request."""
    return json_answer(_info(described(request), service_of(request)))


def described(request: Request) -> Model:
    """The only embedder, or else the only one with SPLADE pooling, or else the only classifier.

    Raises RefusalError where none is there, or several are.
    """
    service = service_of(request)
    if service.registry.has_task("embed"):
        return the_embedder(request)
    if service.registry.has_task("embed_sparse"):
        return the_sparse_embedder(request)
    return service.find(record_of(request), None, CLASSIFY)


def _info(model: Model, service: Service) -> Info:
    execution, limits = model.served.execution, service.limits
    embeds = execution.task in ("embed", "embed_sparse")
    return Info(
        model_id=model.name,
        model_dtype=execution.dtype,
        served_model_name=model.name,
        model_type=_model_type(model),
        max_concurrent_requests=limits.max_sequences,
        max_input_length=model.max_model_len,
        max_batch_tokens=execution.max_step_tokens,
        max_client_batch_size=limits.max_inputs if embeds else limits.max_documents,
        version=__version__,
    )


def _model_type(model: Model) -> ModelType:
    config = model.served.execution.model
    if model.served.execution.task == "embed":
        return ModelType(embedding=EmbeddingType(_pooling(config.pooling)))
    if model.served.execution.task == "embed_sparse":
        return ModelType(embedding=EmbeddingType("splade"))
    labels = ClassifierType(
        {str(index): label for index, label in enumerate(config.labels)},
        {label: index for index, label in enumerate(config.labels)},
    )
    ranks = model.served.execution.scores_relevance
    return ModelType(reranker=labels) if ranks else ModelType(classifier=labels)


def _pooling(pooling: PoolingConfig) -> str:
    """In TEI's words, where it has one: it pools neither by weights nor in several ways at once."""
    return "+".join("last_token" if mode == "lasttoken" else mode for mode in pooling.modes)
