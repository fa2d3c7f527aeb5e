"""`python -m benchmarks.attacks`: an honest client beside each attack at its full size.

Each attack has a daemon of its own with the demo models. The honest client first has it for itself,
then beside the attacker. What is asked of penstock: 99 of 100 answers are 200, the slowest 1 % take
at most twice as long as without the attack, or one step longer, whichever is more, and no answer to
anybody is 500 to 599.
"""

import argparse
import json
import multiprocessing
import os
import secrets
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from benchmarks.attacks.attacks import ATTACKS, Attack
from benchmarks.attacks.honest_client import HonestClient
from benchmarks.attacks.target import Target
from benchmarks.daemon.process_stats import family_of, memory_of
from benchmarks.daemon.running_daemon import RunningDaemon, running_daemon
from server.bench.machine import this_machine

_IDLE_SECONDS, _BEGINNING_SECONDS = 12.0, 2.0
_STEP_SECONDS = 0.25
"""A step of the demo generator that is full of prompts, on one core."""

_COLUMNS = ("idle p99", "p50", "p99", "memory", "5xx")


class Outcome(NamedTuple):
    """What the honest client got; seconds and bytes."""

    attack: str
    served: float
    idle_p99: float
    p50: float
    p99: float
    memory: int
    server_errors: int

    @property
    def is_met(self) -> bool:
        bound = max(2 * self.idle_p99, self.idle_p99 + _STEP_SECONDS)
        return self.served >= 0.99 and self.p99 <= bound and not self.server_errors


def main() -> None:
    """Attack after attack, each a line of the table as soon as it is measured."""
    options = _parser().parse_args()
    print(this_machine().header())
    print(f"{'attack':20} {'served':>7}", *(f"{name:>9}" for name in _COLUMNS))
    outcomes: list[Outcome] = []
    for attack in ATTACKS:
        if not options.only or attack.__name__ in options.only:
            outcomes.append(_measure(attack, options))
            print(_line(outcomes[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([o._asdict() for o in outcomes], indent=2) + "\n")


def _measure(attack: Attack, options: argparse.Namespace) -> Outcome:
    with _daemon(options.source, options.keys) as (daemon, attacker, honest):
        client, before = HonestClient(honest), honest.server_errors()
        client.ask_for(_BEGINNING_SECONDS)
        idle = client.ask_for(_IDLE_SECONDS)
        process = multiprocessing.get_context("fork").Process(target=attack, args=(attacker,))
        process.start()
        try:
            time.sleep(_BEGINNING_SECONDS)
            answers = client.ask_for(options.seconds)
            memory = sum(memory_of(pid).pss for pid in family_of(daemon.pid))
            errors = honest.server_errors() - before
        finally:
            process.kill()
            process.join()
    seconds = [answer.seconds for answer in answers]
    served = sum(answer.status == 200 for answer in answers) / len(answers)
    (idle_p99,) = _percentiles([answer.seconds for answer in idle], 99)
    p50, p99 = _percentiles(seconds, 50, 99)
    return Outcome(attack.__name__, served, idle_p99, p50, p99, memory, errors)


@contextmanager
def _daemon(
    source: Path | None, with_keys: bool
) -> Generator[tuple[RunningDaemon, Target, Target]]:
    """A daemon, as the attacker and as the honest client reach it."""
    environment: Mapping[str, str] = os.environ
    if source is not None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
    keys = [secrets.token_hex(16), secrets.token_hex(16)] if with_keys else []
    with TemporaryDirectory() as folder:
        file = Path(folder) / "keys"
        file.write_text("".join(f"{key}\n" for key in keys))
        arguments = ["--state-dir", str(Path(folder) / "state")]
        arguments += ["--api-key-file", str(file)] if keys else []
        with running_daemon(*arguments, environment=environment) as daemon:
            port = urlsplit(daemon.url).port or 80
            attacker, honest = (Target(port, key) for key in keys or (None, None))
            yield daemon, attacker, honest


def _percentiles(seconds: list[float], *shares: int) -> list[float]:
    # So few answers have no 99th percentile but the slowest one.
    return np.percentile(seconds, shares, method="higher").tolist()


def _line(outcome: Outcome) -> str:
    times = [outcome.idle_p99, outcome.p50, outcome.p99]
    cells = "".join(f" {1e3 * seconds:6.0f} ms" for seconds in times)
    verdict = "pass" if outcome.is_met else "MISS"
    more = f"{outcome.memory >> 20:5} MiB {outcome.server_errors:9}"
    return f"{outcome.attack:20} {outcome.served:6.1%} {cells} {more} {verdict}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    names = [attack.__name__ for attack in ATTACKS]
    parser.add_argument("--only", nargs="+", choices=names, help="these attacks (default: all)")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each (default: 25)")
    parser.add_argument("--keys", action="store_true", help="both have an API key of their own")
    parser.add_argument("--source", type=Path, help="attack the daemon of another checkout")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    return parser


if __name__ == "__main__":
    main()
