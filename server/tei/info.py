"""`/info`: the model behind TEI's endpoints."""

from fastapi import APIRouter, Request, Response

from server import __version__
from server.schemas.tei import Info
from server.service.service import json_answer, service_of
from server.tei.model_choice import described, info
from server.tei.operations import ref, tei_operation
from server.tei.tei_errors import tei_errors

router = APIRouter()


@router.get("/info", **tei_operation(ref(Info)))
@tei_errors
async def get_info(request: Request) -> Response:
    """The model that answers, and what a request may ask of it."""
    service = service_of(request)
    return json_answer(info(described(service), service, __version__))
