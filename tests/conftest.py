"""For all tests."""

import functools
import os
import signal

import httpx._transports.default as httpx_transports
from httpx._config import DEFAULT_TIMEOUT_CONFIG, create_ssl_context
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants

from server.models.devices import cuda_memory
from tests.patience import PATIENCE
from workers.contract.process import NO_MULTICAST

os.environ.update(NO_MULTICAST)
# No folder can be made there: the state folder of the user who runs the tests is left alone, and a
# daemon has one only where its test names it.
os.environ["XDG_STATE_HOME"] = "/proc/self/none"

# Every client of httpx, one for each `httpx.get`, would read all authorities' certificates: 30 ms.
setattr(httpx_transports, "create_ssl_context", functools.cache(create_ssl_context))  # noqa: B010

# httpx gives up after 5 s if nothing else is asked for.
vars(DEFAULT_TIMEOUT_CONFIG).update(dict.fromkeys(("connect", "read", "write", "pool"), PATIENCE))

# A shell's background job ignores Ctrl-C, and so would the daemons of tests that send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton reads it while it is imported, which transformers does too, in some other folder's tests.
# Without a GPU its kernels run in the interpreter.
if not cuda_memory():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Of hypothesis: the examples of each run are the same, but for `make test-long`. None is judged by
# the time it takes, as machines that run tests are busy.
settings.register_profile(
    "new",
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("same", settings.get_profile("new"), derandomize=True)
settings.load_profile("same")
# Else there are constants of the modules among them that have been imported until then.
setattr(HypothesisProvider, "_local_constants", Constants())  # noqa: B010
