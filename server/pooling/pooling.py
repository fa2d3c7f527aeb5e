"""`/pooling`: vectors, token vectors or scores of texts, as vLLM answers them."""

from fastapi import Request, Response

from server.encoding.encode import count_usage
from server.encoding.vector_json import rows_in_json
from server.http.body import Body
from server.http.disconnect import CancelOnDisconnect
from server.http.openapi import operation
from server.metrics.request_record import record_of
from server.pooling.pooling_job import PoolingJob
from server.schemas.pooling.pooling_request import Pooling, PoolingList, PoolingRequest
from server.service.endpoint import Endpoint
from server.service.service import json_answer, service_of

POOLING = Endpoint(
    "POST",
    "/pooling",
    operation(PoolingList, PoolingRequest),
    tasks=("embed", "classify"),
    order=65,
)
_body = Body(PoolingRequest)


@POOLING.answered_by
async def create_poolings(request: Request) -> Response:
    """Embed texts or their tokens, or classify texts."""
    service, record = service_of(request), record_of(request)
    body = await _body.read(request, service.limits.max_body_size)
    model = service.find(record, body.model, POOLING, body.priority or 0)
    with CancelOnDisconnect(request.receive):
        pooled = await PoolingJob(service, record, model, body).run()
        rows = await rows_in_json(pooled.rows, in_base64=body.encoding_format == "base64")
        return json_answer(
            PoolingList(
                id=service.new_id("pool"),
                model=model.name,
                data=[Pooling(index=index, data=row) for index, row in enumerate(rows)],
                usage=count_usage(pooled.encoded),
            )
        )
