"""`python -P -m engine_core CONFIG.json [RESTARTS]`: one model's engine core as a process.

RESTARTS is how many times it, or its stages alone, were started before.
"""

import gc
import logging
import signal
import sys
from pathlib import Path

import msgspec
import zmq

from engine_core.config import EngineConfig
from engine_core.core import EngineCore
from engine_core.executor.stage_link import StageLink
from engine_core.executor.stage_start import WorkerLostError
from engine_core.loop.transport import ClientSocket
from engine_core.tokenization.tokenizer import Tokenizer, TokenizerError
from engine_core.workflows.base import workflow_for
from workers.contract.model_config import ModelConfigError
from workers.contract.process import Heartbeat, exit_with_parent, open_log

log = logging.getLogger("engine_core")

_SWITCH_SECONDS = 1e-4


def main() -> int:
    """Serve until SIGTERM. Exit code 1 when it cannot listen, or stages are lost too often."""
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=EngineConfig)
    execution = config.execution.restarted(*sys.argv[2:])
    config = msgspec.structs.replace(config, execution=execution)
    open_log(f"engine {execution.engine_name}", execution.log_level)
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    # The tokenizing threads must not hold the loop up for Python's usual 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        _serve(config)
    except (ModelConfigError, TokenizerError, WorkerLostError) as error:
        log.error("%s", error)
    return 1


def _serve(config: EngineConfig) -> None:
    execution = config.execution
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        executor = StageLink(config, context)
        clients = ClientSocket(config.client_endpoint, context)
    except zmq.ZMQError as error:
        log.error("cannot listen: %s", error)
        return
    tokenizer = Tokenizer.for_model(execution.model, execution.load_format)
    # The workers load meanwhile; later, reading the vocabulary would hold the loop up.
    workflow = workflow_for(execution.task, has_kv_cache=execution.model.has_kv_cache)
    preprocessor = workflow.preprocessor(execution, tokenizer)
    heart = Heartbeat()
    capacity = executor.start(heart.beat)
    if capacity.num_blocks:
        log.info("KV cache: %s", execution.cache_layout.described(capacity.num_blocks))
    core = EngineCore(
        config,
        workflow,
        capacity,
        executor,
        clients,
        preprocessor,
        say=heart.say,
    )
    gc.freeze()
    try:
        core.run()
    finally:
        clients.close()
        executor.close()


if __name__ == "__main__":
    sys.exit(main())
