"""The model that a TEI request means: it names none, so only one may fit."""

from server.errors import APIError
from server.schemas.tei import ClassifierType, EmbeddingType, Info, ModelType
from server.service.registry import Endpoint, Model
from server.service.service import Service


def embedder(service: Service) -> Model:
    """Raises APIError where there is none, or several."""
    if not _any(service, "/v1/embeddings") and _any(service, "/embed_sparse"):
        raise APIError("wrong_endpoint", "Model has SPLADE pooling: it serves `/embed_sparse`")
    return service.find(None, "/v1/embeddings")


def sparse_embedder(service: Service) -> Model:
    """Raises APIError where there is none, in TEI's words, or several."""
    if not _any(service, "/embed_sparse"):
        message = "Model is not an embedding model with SPLADE pooling"
        raise APIError("wrong_endpoint", message)
    return service.find(None, "/embed_sparse")


def classifier(service: Service) -> Model:
    """Raises APIError where there is none, or several."""
    return service.find(None, "/v1/classify")


def reranker(service: Service) -> Model:
    """The only reranker; where there is none, the only embedder. Raises APIError otherwise."""
    rerankers = [
        model
        for model in service.registry.models
        if {"/v1/rerank", "/v1/classify"} <= set(model.endpoints)
    ]
    return service.find(_only(rerankers) if rerankers else None, "/v1/rerank")


def described(service: Service) -> Model:
    """The model that `/info` is about: the only embedder, or else the only one with SPLADE pooling,
    or else the only classifier.

    Raises APIError where none is there, or several are.
    """
    if _any(service, "/v1/embeddings"):
        return embedder(service)
    return sparse_embedder(service) if _any(service, "/embed_sparse") else classifier(service)


def info(model: Model, service: Service, version: str) -> Info:
    """What TEI tells of `model`."""
    engine, limits = model.served.engine, service.limits
    embeds = engine.task in ("embed", "embed_sparse")
    return Info(
        model_id=model.name,
        model_dtype=engine.dtype,
        served_model_name=model.name,
        model_type=_model_type(model),
        max_concurrent_requests=limits.max_requests,
        max_input_length=model.max_model_len,
        max_batch_tokens=engine.max_step_tokens,
        max_client_batch_size=limits.max_inputs if embeds else limits.max_documents,
        version=version,
    )


def _model_type(model: Model) -> ModelType:
    config = model.served.engine.model
    if model.served.engine.task == "embed":
        return ModelType(embedding=EmbeddingType(config.pooling.mode))
    if model.served.engine.task == "embed_sparse":
        return ModelType(embedding=EmbeddingType("splade"))
    labels = ClassifierType(
        {str(index): label for index, label in enumerate(config.labels)},
        {label: index for index, label in enumerate(config.labels)},
    )
    return ModelType(reranker=labels) if config.num_labels == 1 else ModelType(classifier=labels)


def _any(service: Service, endpoint: Endpoint) -> bool:
    return any(endpoint in model.endpoints for model in service.registry.models)


def _only(models: list[Model]) -> str:
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise APIError("model_required", f"several models could be meant: {names}")
    return models[0].name
