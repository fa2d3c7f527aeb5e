"""`python -m benchmarks.daemon.chaos`: random faults under mixed load, and what clients saw.

A process of a kind drawn at random gets a signal at a random moment, again and again, while clients
compare what they get with what an undisturbed daemon says in float32. Asked of penstock: a lost
stage is a pause, and no answer is lost, repeated or different; a lost core is an error with a code
for its model's requests; a lost API process breaks its connections off.
"""

import argparse
import os
import random
import signal
import sys
import time
from contextlib import suppress

import httpx

from benchmarks.daemon.mixed_load import MixedLoad
from benchmarks.daemon.process_stats import children_of
from benchmarks.daemon.running_daemon import running_daemon
from server.bench.machine import this_machine

STAGE, CORE, API = "workers", "engine_core", "server.daemon.api_process"
KINDS = {"stage": STAGE, "core": CORE, "api": API}
_TOLD = {
    "stage": set[str](),
    "core": {"engine_dead", "not_ready"},
    "api": {"broken"},
}
"""The outcomes that a loss of each kind may have beside the right answer."""
_STALL_SECONDS = 10
_READY_SECONDS = 120.0
_LONGEST_CALM = 3.0
_FROZEN = 0.1
_ON_THE_WAY_SECONDS = 0.3
"""In which clients may still read what was sent before a loss."""


def unexpected(load: MixedLoad, kinds: list[str], copies: int = 1) -> dict[str, int]:
    """The outcomes that losses of these kinds do not explain. One of several copies is ready."""
    explained = {"same"}.union(*(_TOLD[kind] for kind in kinds))
    if copies > 1:
        explained.discard("not_ready")
    return {what: count for what, count in load.outcomes.items() if what not in explained}


def lose(pid: int, kind: str, drawn: random.Random, number: signal.Signals) -> float | None:
    """Send a process of the daemon a signal. Returns the time, None if there is none now."""
    found = [child for child, module in children_of(pid).items() if module == KINDS[kind]]
    if not found:
        return None
    with suppress(ProcessLookupError):
        os.kill(drawn.choice(found), number)
    return time.monotonic()


def until_ready(url: str, since: float) -> float:
    """Wait for all engines. Returns the seconds from `since` on. Raises TimeoutError."""
    while time.monotonic() < since + _READY_SECONDS:
        with suppress(httpx.TransportError):
            models = httpx.get(f"{url}/status", timeout=_READY_SECONDS).json()["models"]
            if {engine["state"] for model in models for engine in model["engines"]} == {"ready"}:
                return time.monotonic() - since
        time.sleep(0.02)
    raise TimeoutError(f"not ready {_READY_SECONDS:g} s after a fault")


def until_update(load: MixedLoad, since: float) -> None:
    """Wait until somebody gets on."""
    while load.last_update < since + _ON_THE_WAY_SECONDS:
        time.sleep(0.02)


def until_updates(load: MixedLoad, since: float) -> None:
    """Wait until everybody gets on. Three losses before that may be taken for a request's fault."""
    while load.oldest_update < since + _ON_THE_WAY_SECONDS:
        time.sleep(0.02)


def main() -> int:
    """Each fault is a line as soon as it is over. The exit code is 1 if a client saw what it must
    not."""
    options = _parser().parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    drawn = random.Random(seed)
    print(this_machine().header(), f"\nseed {seed}", flush=True)
    words = ["--threads=1", "--state-dir=none", "--api-workers=2", "--max-queue-seconds=0"]
    words += [f"--pipeline-stages={options.stages}", f"--data-parallel-size={options.copies}"]
    words += [f"--stall-timeout={_STALL_SECONDS}", "--max-restarts=1000000"]
    with running_daemon(*words) as daemon:
        load = MixedLoad(daemon.url)
        load.start(options.clients, seed)
        until, faults = time.monotonic() + 60 * options.minutes, 0
        while time.monotonic() < until:
            time.sleep(drawn.uniform(0, _LONGEST_CALM))
            kind = drawn.choice(options.only)
            number = signal.SIGSTOP if drawn.random() < _FROZEN else signal.SIGKILL
            if (lost := lose(daemon.pid, kind, drawn, number)) is not None:
                faults += 1
                time.sleep(_STALL_SECONDS + 1 if number == signal.SIGSTOP else 0.3)
                seconds = until_ready(daemon.url, lost)
                print(f"{kind:6} {number.name:8} ready after {seconds:5.1f} s", flush=True)
                if faults % 2 == 0:
                    until_updates(load, lost)
        load.stop()
    print(f"{faults} faults; longest pause {load.longest_pause:.1f} s; {dict(load.outcomes)}")
    wrong = unexpected(load, options.only, options.copies)
    for asked in load.wrong[:5]:
        print(f"different: {asked}")
    print(f"MISS: {wrong}" if wrong else "pass")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of faults (default: 30)")
    parser.add_argument("--seed", type=int, help="of the faults (default: one at random, printed)")
    parser.add_argument("--clients", type=int, default=64, help="at once (default: 64)")
    parser.add_argument("--stages", type=int, default=2, help="of each model (default: 2)")
    parser.add_argument("--copies", type=int, default=1, help="of each engine (default: 1)")
    parser.add_argument(
        "--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="these (default: all)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
