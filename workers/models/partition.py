"""Which layers of a model belong to which pipeline stage."""

from typing import TypeVar

from workers.contract.model_config import ModelConfigError

PartT = TypeVar("PartT")


def stage_layers(num_layers: int, stage: int, num_stages: int) -> range:
    """The layers of `stage`, if `num_layers` consecutive layers are divided among `num_stages`.

    Shares differ by at most one layer. Layers that do not divide evenly go to the middle stages
    first, then to the first stage, never to the last: the first stage's embedding is a lookup,
    while the last stage's LM head is a product with the whole vocabulary.

    Raises ModelConfigError if a stage would have no layer.
    """
    if num_stages > num_layers:
        raise ModelConfigError(
            f"{num_layers} layers cannot be split over {num_stages} pipeline stages"
        )
    share, left_over = divmod(num_layers, num_stages)
    first_takers = [*range(1, num_stages - 1), 0]
    extra = set(first_takers[:left_over])
    start = share * stage + sum(1 for earlier in extra if earlier < stage)
    return range(start, start + share + (stage in extra))


def on_this_stage(part: PartT | None) -> PartT:
    """A part that only the first stage has (the embedding) or the last (the head), and that is
    used on no other."""
    assert part is not None, "used only on the stage that has it"
    return part
