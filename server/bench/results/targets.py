"""The values that figures are compared with: our goals, vLLM's figures, the hardware's floors.

They stand in `benchmarks/targets.toml` of the source checkout. An installed wheel has no such file;
its reports show our own figures only.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

SOURCE = Path(__file__).parents[3]
"""The source checkout, or where the wheel is installed."""

_FILE = SOURCE / "benchmarks" / "targets.toml"
_GPUS = (1, 2, 4)

Values = tuple[float, ...]
"""For 1, 2 and 4 GPUs, one GPU a pipeline stage, as far as they are known."""


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values that one figure of a workload is compared with. `stage_layers_goal` is the goal
    of a pipeline whose partition was chosen for the case, by --stage-layers."""

    goal: Values = ()
    stage_layers_goal: Values = ()
    vllm: Values = ()
    floor: Values = ()

    def goal_of(self, stages: int, stage_layers: Sequence[int]) -> float | None:
        """The goal of so many stages, each on a GPU of its own, which have the layers that
        --stage-layers names, or (if it names none) those that the engine chose."""
        chosen = for_gpus(self.stage_layers_goal, stages) if stage_layers else None
        return for_gpus(self.goal, stages) if chosen is None else chosen


class Targets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The targets of all cases: case -> figure -> target. `vllm_version` is None where there are
    none."""

    vllm_version: str | None = None
    cases: dict[str, dict[str, Target]] = {}

    def of(self, case: str, figure: str) -> Target:
        """The target of one figure; without values where it has none."""
        return self.cases.get(case, {}).get(figure, Target())


def read_targets(file: Path = _FILE) -> Targets:
    """The targets; none where the file is absent. Raises msgspec.ValidationError."""
    if not file.exists():
        return Targets()
    return msgspec.convert(tomllib.loads(file.read_text()), Targets)


def for_gpus(values: Values, gpus: int) -> float | None:
    """The value for so many GPUs; None where it is not known."""
    return next((value for known, value in zip(_GPUS, values, strict=False) if known == gpus), None)
