"""How TEI's endpoints cut texts that are too long."""

from typing import Literal

from engine_core.messages import Tokenization
from server.schemas.tei import Direction
from server.service.registry import Model


def side(direction: Direction | None) -> Literal["left", "right"]:
    """The side on which a text is cut."""
    return "left" if direction in ("left", "Left") else "right"


def whole_cut(model: Model, *, truncate: bool | None, direction: Direction | None) -> Tokenization:
    """The tokenization that cuts to the model's length if `truncate`."""
    limit = model.max_model_len if truncate else None
    return Tokenization(truncate_to=limit, truncation_side=side(direction))
