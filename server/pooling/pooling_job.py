"""The job of one request of `/pooling`, by its task."""

from collections.abc import Iterable

import msgspec
import numpy as np

from engine_core.client.encode_calls import Encoded
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.encoding.embedding_plan import EmbeddingPlan, embedding_plan
from server.encoding.encode import encode
from server.encoding.label_scores import label_scores
from server.encoding.row_names import item_names
from server.encoding.vectors import AnyArray, quantize, shorten
from server.metrics.request_record import RequestRecord
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.pooling.pooling_request import PoolingRequest, PoolingTask
from server.service.inputs import Items, parse_items
from server.service.registry import Model
from server.service.service import Service
from server.service.truncation import truncation_limit


class Pooled(msgspec.Struct, frozen=True):
    """What each item is pooled to, of the type requested: [D] numbers, or [tokens, D]; and the
    answer from which it was made."""

    rows: Iterable[AnyArray]
    encoded: Encoded


class PoolingJob(msgspec.Struct, frozen=True):
    """A request, and the model that it is for."""

    service: Service
    record: RequestRecord
    model: Model
    body: PoolingRequest

    async def run(self) -> Pooled:
        """Pool all items. Raises RefusalError."""
        match self._task():
            case "embed":
                return await self._vectors()
            case "token_embed":
                return await self._token_vectors()
            case "classify":
                return await self._scores()

    def _task(self) -> PoolingTask:
        """The request's, or that of its model. Raises RefusalError for one that the model has
        not."""
        is_embedder = self.model.served.execution.task == "embed"
        tasks: tuple[PoolingTask, ...] = ("embed", "token_embed") if is_embedder else ("classify",)
        task = self.body.task or tasks[0]
        if task not in tasks:
            message = f"task: model {self.model.name} serves {' and '.join(tasks)}, not {task}"
            raise RefusalError("invalid_request", message, "task")
        return task

    async def _vectors(self) -> Pooled:
        plan = self._embedding_plan()
        encoded = await self._encode(plan.items, plan.tokenization)
        vectors = shorten(encoded.values, plan.dimensions, normalize=plan.normalize)
        return Pooled(quantize(vectors, plan.dtype), encoded)

    async def _token_vectors(self) -> Pooled:
        plan = self._embedding_plan()
        encoded = await self._encode(plan.items, plan.tokenization, token_states=True)
        states = shorten(encoded.values, encoded.values.shape[1], normalize=plan.normalize)
        ends = np.cumsum(encoded.counts)
        return Pooled(np.split(quantize(states, plan.dtype), ends[:-1]), encoded)

    async def _scores(self) -> Pooled:
        body, model = self.body, self.model
        items = parse_items(body.input, "input", model, self.service.limits.max_inputs)
        longest = model.max_model_len
        tokenization = Tokenization(
            add_special_tokens=body.add_special_tokens is not False,
            truncate_to=truncation_limit(body.truncate_prompt_tokens, longest, longest=longest),
            truncation_side=body.truncation_side or "right",
        )
        encoded = await self._encode(items, tokenization)
        raw = body.use_activation is False
        config = model.served.execution.model
        scores = encoded.values if raw else label_scores(encoded.values, config)
        return Pooled(quantize(scores, body.embed_dtype or "float32"), encoded)

    def _embedding_plan(self) -> EmbeddingPlan:
        """The request as one of `/v1/embeddings`. Raises RefusalError."""
        body = self.body
        request = EmbeddingRequest(
            input=body.input,
            embed_dtype=body.embed_dtype,
            use_activation=body.use_activation,
            add_special_tokens=body.add_special_tokens,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            truncation_side=body.truncation_side,
        )
        return embedding_plan(request, self.model, self.service.limits)

    async def _encode(
        self, items: Items, tokenization: Tokenization, *, token_states: bool = False
    ) -> Encoded:
        body = self.body
        options = JobOptions(
            tokenization=tokenization,
            cache_salt=body.cache_salt or "",
            priority=body.priority or 0,
        )
        name = item_names("input", body.input)
        return await encode(
            self.service,
            self.record,
            self.model,
            items,
            token_states=token_states,
            options=options,
            name=name,
        )
