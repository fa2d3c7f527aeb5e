"""What only a GPU runs compiles: the interpreter has no assembler, and no types of a compiler."""

import os
import subprocess
import sys


def test_kernels_with_instructions_of_a_gpu_compile() -> None:
    command = [sys.executable, "-m", "tests.workers.kernels.compile_for_hopper"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kernels = [line.split()[0] for line in done.stdout.splitlines()]
    assert kernels.count("_attend") == 2 * 4
    assert "_grouped_linear" in kernels
