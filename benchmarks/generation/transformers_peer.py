"""transformers' `generate`, to compare with.

`python -m benchmarks.generation.transformers_peer FOLDER THREADS` reads `Task`s from standard input
and writes a `Done` for each to standard output, as lines of JSON. Greedy, float32, and exactly
`new_tokens` tokens: no token ends the text.
"""

import sys
import time

import msgspec
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from benchmarks.generation.generation import Done, Task


def main() -> None:
    """The process; it ends with its standard input."""
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # Not the checkpoint's own, which samples, and stops at the end of a text.
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    with torch.inference_mode():
        for line in sys.stdin:
            done = _generate(model, msgspec.json.decode(line, type=Task))
            print(msgspec.json.encode(done).decode(), flush=True)


def _generate(model, task: Task) -> Done:
    prompt = torch.tensor([task.prompt])
    started = time.perf_counter()
    generated = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=task.new_tokens
    )
    seconds = time.perf_counter() - started
    return Done(generated[0, len(task.prompt) :].tolist(), seconds)


if __name__ == "__main__":
    main()
