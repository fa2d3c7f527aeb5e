"""What TEI's endpoints share: lists as answers, and how what is too long is cut."""

from typing import Literal

import msgspec
from fastapi import Response

from engine_core.messages import Tokenization
from server.registry import Model
from server.schemas.tei import Direction


def as_json(answer: object) -> Response:
    """A 200 with `answer` as JSON."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


def side(direction: Direction | None) -> Literal["left", "right"]:
    """The end at which what is too long is cut."""
    return "left" if direction in ("left", "Left") else "right"


def whole_cut(model: Model, *, truncate: bool | None, direction: Direction | None) -> Tokenization:
    """The tokenization that cuts to the model's length, or nothing."""
    limit = model.max_model_len if truncate else None
    return Tokenization(truncate_to=limit, truncation_side=side(direction))
