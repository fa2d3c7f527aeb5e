"""Many prompts that begin alike: `python examples/batch_generate.py [MODEL]`."""

import sys

from server.batches.batch_llm import BatchLLM
from server.batches.results import RequestError
from server.demo import GENERATOR_NAME, demo_models

INSTRUCTIONS = "You answer questions about files. Say only what you are sure of. " * 5
QUESTIONS = [f"What does command number {number} do?" for number in range(40)]


def main() -> None:
    """Print some answers, and what the shared instructions have saved."""
    model = sys.argv[1] if len(sys.argv) > 1 else str(demo_models()[GENERATOR_NAME])
    prompts = [f"{INSTRUCTIONS}\n{question}\n" for question in QUESTIONS]
    with BatchLLM(model) as llm:
        results = llm.generate(prompts, max_tokens=24, temperature=0.7, seed=1)
        for question, result in zip(QUESTIONS[:3], results[:3], strict=True):
            answer = f"refused: {result}" if isinstance(result, RequestError) else result.text
            print(f"{question} {answer!r}")
        print(llm.summary)


if __name__ == "__main__":
    main()
