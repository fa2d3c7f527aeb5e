"""`penstock serve` with the demo models: seconds until it is ready, and its memory then."""

from statistics import median

from benchmarks.daemon.process_stats import children_of, has_mapped, memory_of
from benchmarks.daemon.running_daemon import running_daemon
from benchmarks.report import Budget, Figure
from server.demo import demo_models

_READY_SECONDS, _MEMORY_MB = 6, 150
_STARTS = 3


def measure() -> list[Figure]:
    """The median of three starts, after one that warms the files; memory in the last."""
    with running_daemon():
        pass
    times: list[float] = []
    memory: list[Figure] = []
    for _ in range(_STARTS):
        with running_daemon() as daemon:
            times.append(daemon.seconds)
            memory = _memory(daemon.pid)
    note = f"median of {', '.join(f'{seconds:.2f}' for seconds in times)}"
    return [Figure("start to ready", median(times), "s", Budget(_READY_SECONDS), note), *memory]


def _memory(supervisor: int) -> list[Figure]:
    """Resident memory of every process of the daemon, and how many have torch without need."""
    names = {supervisor: "supervisor"} | _names(children_of(supervisor))
    figures: list[Figure] = []
    with_torch: list[str] = []
    for pid, name in names.items():
        computes = name.startswith("worker")
        if not computes and has_mapped(pid, "libtorch"):
            with_torch.append(name)
        memory = memory_of(pid)
        budget = None if computes else Budget(_MEMORY_MB)
        note = f"{memory.pss / 1e6:.0f} MB with shared pages divided"
        figures.append(Figure(f"memory of the {name}", memory.rss / 1e6, "MB", budget, note))
    note = ", ".join(with_torch)
    return [*figures, Figure("torch where it is not needed", len(with_torch), "", Budget(0), note)]


def _names(modules: dict[int, str]) -> dict[int, str]:
    """What each child is; engines and workers are started model by model."""
    models = {"engine_core": iter(demo_models()), "workers": iter(demo_models())}
    roles = {"engine_core": "engine core", "workers": "worker"}
    return {
        pid: f"{roles[module]} of {next(models[module])}" if module in roles else "API process"
        for pid, module in modules.items()
    }
