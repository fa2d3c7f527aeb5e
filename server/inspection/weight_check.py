"""Has the weights of a checkpoint compared with its model, by the code that loads them.

That code needs torch, so that it runs in a process of its own.
"""

import subprocess
import sys

import msgspec

from server.settings.settings import child_environment
from workers.contract.config import ExecutionConfig

_TIMEOUT = 300.0
# -P: a file in the current folder that is called like one of our packages is not imported.
_COMMAND = (sys.executable, "-P", "-m", "workers.weights.loader")


def weight_faults(execution: ExecutionConfig) -> list[str]:
    """A line for each reason why the weights would not be loaded."""
    try:
        done = subprocess.run(
            _COMMAND,
            env=child_environment(),
            input=msgspec.json.encode(execution),
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return [f"comparing the weights with the model took over {_TIMEOUT:.0f} s"]
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"status {error.returncode}"
        return [f"the weights cannot be compared with the model: {reason}"]
    return msgspec.json.decode(done.stdout, type=list[str])
