"""The values that figures are compared with: our goals, vLLM's figures, the hardware's floors.

They stand in `benchmarks/targets.toml` of the source checkout. An installed wheel has no such file;
its reports show our own figures only.
"""

import tomllib
from pathlib import Path

import msgspec

SOURCE = Path(__file__).parents[3]
"""The source checkout, or where the wheel is installed."""

_FILE = SOURCE / "benchmarks" / "targets.toml"
_GPUS = (1, 2, 4)

Values = tuple[float, ...]
"""For 1, 2 and 4 GPUs, one GPU a pipeline stage, as far as they are known."""


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values that one figure of a workload is compared with."""

    goal: Values = ()
    vllm: Values = ()
    floor: Values = ()


NO_TARGET = Target()


class Targets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The targets of all cases: case -> figure -> target."""

    vllm_version: str
    cases: dict[str, dict[str, Target]]

    def of(self, case: str, figure: str) -> Target:
        """The target of one figure; without values where it has none."""
        return self.cases.get(case, {}).get(figure, NO_TARGET)


def read_targets(file: Path = _FILE) -> Targets | None:
    """The targets; None where the file is absent. Raises msgspec.ValidationError."""
    if not file.exists():
        return None
    return msgspec.convert(tomllib.loads(file.read_text()), Targets)


def for_gpus(values: Values, gpus: int) -> float | None:
    """The value for so many GPUs; None where it is not known."""
    return next((value for known, value in zip(_GPUS, values, strict=False) if known == gpus), None)
