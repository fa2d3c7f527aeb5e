"""How TEI's endpoints cut texts that are too long."""

from typing import Literal

from engine_core.messages import Tokenization
from server.schemas.tei import TextOptions
from server.service.service import Model


def side(options: TextOptions) -> Literal["left", "right"]:
    """The side on which a text is cut."""
    return "left" if options.truncation_direction in ("left", "Left") else "right"


def whole_cut(model: Model, options: TextOptions) -> Tokenization:
    """The tokenization that cuts to the model's length if the request permits it."""
    limit = model.max_model_len if options.truncate else None
    return Tokenization(truncate_to=limit, truncation_side=side(options))
