"""The two most alike of many texts: `python examples/batch_embed.py [MODEL]`."""

import sys

import numpy as np

from server.batches.batch_llm import BatchLLM
from server.demo import EMBEDDER_NAME, demo_models

TEXTS = [
    "The cat sat on the mat.",
    "Paris is the capital of France.",
    "A penstock leads water to a turbine.",
    "A cat was sitting on a rug.",
    "Bamboo grows fast.",
]


def main() -> None:
    """Print them with their similarity."""
    model = sys.argv[1] if len(sys.argv) > 1 else str(demo_models()[EMBEDDER_NAME])
    with BatchLLM(model) as llm:
        vectors = llm.embed(TEXTS)  # float32[N, D], of length 1
        print(llm.summary)
    alike = np.triu(vectors @ vectors.T, k=1)
    one, other = divmod(int(alike.argmax()), len(TEXTS))
    print(f"{alike[one, other]:.2f}: {TEXTS[one]} | {TEXTS[other]}")


if __name__ == "__main__":
    main()
