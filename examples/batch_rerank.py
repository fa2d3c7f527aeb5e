"""The best document for each of many queries: `python examples/batch_rerank.py [MODEL]`."""

import sys

from server.batches.batch_llm import BatchLLM
from server.batches.results import RequestError
from server.demo import EMBEDDER_NAME, demo_models

DOCUMENTS = [
    "The giant panda lives on bamboo.",
    "Paris is the capital of France.",
    "A penstock leads water to a turbine.",
]
QUERIES = ["What do pandas eat?", "Where is the French government?", "How is water led down?"]


def main() -> None:
    """Print them with their scores."""
    model = sys.argv[1] if len(sys.argv) > 1 else str(demo_models()[EMBEDDER_NAME])
    with BatchLLM(model) as llm:
        rankings = llm.rerank_each(QUERIES, [DOCUMENTS] * len(QUERIES), top_n=1)
        for query, ranking in zip(QUERIES, rankings, strict=True):
            if isinstance(ranking, RequestError):
                print(f"{query} refused: {ranking}")
            else:
                print(f"{ranking[0].relevance_score:.2f}: {query} {DOCUMENTS[ranking[0].index]}")
        print(llm.summary)


if __name__ == "__main__":
    main()
