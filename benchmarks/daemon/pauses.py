"""`python -m benchmarks.daemon.pauses`: how long clients wait after a loss, beside a whole restart.

Each round kills one process of each kind under streams of the demo generator: the seconds until the
first token that anybody gets after it. A lost stage's is a token of a stream that goes on, that of
a lost core or API process one of a request that asks again. *The whole* is a daemon that starts
nothing again: until it has ended, another one is ready, and the same requests have their first
token.
"""

import argparse
import random
import signal
import statistics
import time

from benchmarks.daemon.chaos import KINDS, lose, until_update
from benchmarks.daemon.mixed_load import Asked, MixedLoad
from benchmarks.daemon.running_daemon import running_daemon
from server.bench.machine import this_machine
from server.demo import GENERATOR_NAME, demo_models

_STREAM = {"prompt": "The function", "max_tokens": 900, "ignore_eos": True, "temperature": 0}
_BEGINNING_SECONDS = 3.0
_END_SECONDS = 60.0


def main() -> None:
    """A line for each kind and number of stages."""
    options = _parser().parse_args()
    print(this_machine().header())
    print(f"{'lost':8} {'stages':>6} {'streams':>8}  seconds without a token, median of all")
    for stages in options.stages:
        for kind in (*KINDS, "the whole"):
            pauses = [_pause(kind, stages, options.streams) for _ in range(options.rounds)]
            each = ", ".join(f"{pause:.1f}" for pause in pauses)
            median = statistics.median(pauses)
            print(f"{kind:9} {stages:5} {options.streams:8}  {median:5.1f} of {each}", flush=True)


def _pause(kind: str, stages: int, streams: int) -> float:
    whole, pause = kind == "the whole", 0.0
    folder = str(demo_models()[GENERATOR_NAME])
    words = [folder, "--served-model-name", GENERATOR_NAME, "--threads", "1"]
    words += ["--pipeline-stages", str(stages), "--state-dir", "none", "--max-queue-seconds", "0"]
    words += ["--max-restarts", "0" if whole else "3", "--drain-timeout", "0"]
    asked = [Asked("/v1/completions", {"model": GENERATOR_NAME, "stream": True, **_STREAM})]
    with running_daemon(*words) as daemon:
        load = MixedLoad(daemon.url, asked)
        load.start(streams, seed=1)
        time.sleep(_BEGINNING_SECONDS)
        victim = "stage" if whole else kind
        lost = lose(daemon.pid, victim, random.Random(1), signal.SIGKILL)
        assert lost is not None, "there is one of each kind"
        if whole:
            daemon.exit_code(_END_SECONDS)
        else:
            until_update(load, lost)
            pause = load.last_update - lost
    load.stop()
    if not whole:
        return pause
    with running_daemon(*words) as daemon:
        one = asked[0]._replace(body=asked[0].body | {"max_tokens": 1})
        return MixedLoad(daemon.url, [one]).last_update - lost


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon.pauses", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each (default: 3)")
    parser.add_argument("--streams", type=int, default=16, help="at once (default: 16)")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    return parser


if __name__ == "__main__":
    main()
