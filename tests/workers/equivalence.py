"""Models, prompts and ways to run them, for tests that hold generations against a reference."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import server.demo
from engine_core.messages import SamplingParams
from tests.engine_core.integrity import check_blocks
from tests.workers.checkpoints import save_llama
from tests.workers.inline_engine import MUTATIONS, InlineEngine, Mutation, Sampled, Way, unchanged
from tests.workers.teacher import CLEAR_GAP, TOLERANCE, Comparison, Reference, references
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.messages import Logprobs
from workers.contract.token_sampling import GREEDY

DEMO = Path(server.demo.__file__).parent / "generator"
STOPS_EQUAL = 0.95
"""Share of the texts that must be equal: where two tokens are as good as each other, either may
come."""

_GAIN = 1.5
"""Standard deviation of the random models' logits, about."""

SHAPES: dict[str, dict[str, Any]] = {
    f"heads_{heads}_of_{size}_kv_{kv_heads}": {
        "hidden_size": hidden,
        "head_dim": size,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
    }
    for heads, size, kv_heads, hidden, inner in (
        (8, 64, 2, 320, 448),
        (3, 64, 3, 192, 448),
        (4, 128, 1, 512, 704),
        (3, 128, 3, 384, 640),
    )
}
"""Random Llamas of two layers and an odd vocabulary."""

MODELS = ["demo", *SHAPES]

WAYS: dict[str, Way] = {
    "plain": Way(),
    "ahead": Way(depth=2, arrivals=1),
    "chunks": Way(depth=2, max_step_tokens=40),
    "large_blocks": Way(depth=2, block_size=64, num_blocks=450, max_step_tokens=100),
    "few_at_once": Way(max_running=5, arrivals=2),
    "two_stages": Way(stages=2, depth=3, arrivals=1),
    "two_stages_chunks": Way(stages=2, depth=5, max_step_tokens=40, max_running=12),
}
"""Batch composition, chunks, depth, block size and stages. Preemption has a test of its own."""

_EDGES = (1, 2, 15, 16, 17, 63, 64, 65)


@dataclass(frozen=True)
class Lesson:
    """A model, prompts (a folder, token ids) and what it says after each."""

    folder: Path
    prompts: list[list[int]]
    references: list[Reference]

    def generate(self, engine: InlineEngine, comparison: Comparison, width: int = 8) -> Comparison:
        """Let the engine answer all prompts greedily, reporting `width` alternatives a token."""
        count = len(self.references[0].tokens)
        params = SamplingParams(sampling=GREEDY, max_tokens=count, ignore_eos=True, logprobs=width)
        engine.generate(self.prompts, params, comparison)
        return comparison

    def run(
        self, way: Way, mutate: Mutation = unchanged, width: int = 8
    ) -> tuple[InlineEngine, Comparison]:
        """A new engine's answers, judged but not checked."""
        engine = InlineEngine(self.folder, way, mutate)
        comparison = Comparison(self.references, way.dtype, forced=way.depth == 1)
        return engine, self.generate(engine, comparison, width)


class Lessons:
    """Lessons of `count` prompts, up to `longest` tokens, and `tokens` answered; made once each."""

    def __init__(self, root: Path, *, count: int, longest: int, tokens: int) -> None:
        self._root, self._count, self._longest, self._tokens = root, count, longest, tokens
        self._made: dict[str, Lesson] = {}

    def __call__(self, model: str) -> Lesson:
        if model not in self._made:
            folder = DEMO if model == "demo" else self._root / model
            if model != "demo":
                save_random(folder, model)
            vocabulary = read_model_config(folder).vocab_size
            prompts = random_prompts(vocabulary, self._count, self._longest)
            self._made[model] = self.of(folder, prompts)
        return self._made[model]

    def of(self, folder: Path, prompts: list[list[int]]) -> Lesson:
        return Lesson(folder, prompts, references(folder, prompts, self._tokens))


def save_random(folder: Path, shape: str, vocab_size: int = 2051) -> Any:
    """Write a random Llama; returns transformers' model."""
    shaped = SHAPES[shape]
    return save_llama(
        folder,
        vocab_size=vocab_size,
        num_hidden_layers=2,
        max_position_embeddings=512,
        initializer_range=_GAIN * shaped["hidden_size"] ** -0.5,
        **shaped,
    )


def random_prompts(vocabulary: int, count: int, longest: int) -> list[list[int]]:
    """Lengths at the edges of blocks, the longest, and any between; no two begin alike."""
    draw = random.Random(count)
    fixed = [*(length for length in _EDGES if length < longest), longest]
    lengths = (fixed + [draw.randrange(1, longest) for _ in range(count)])[:count]
    return [draw.choices(range(6, vocabulary), k=length) for length in lengths]


def prompts_that_begin_alike(vocabulary: int) -> list[list[int]]:
    """Six with the same 70 tokens in front, one of them those 70 alone."""
    draw = random.Random(6)
    common = draw.choices(range(6, vocabulary), k=70)
    return [common + draw.choices(range(6, vocabulary), k=own) for own in (0, 1, 9, 26, 58, 90)]


def check_way(lesson: Lesson, way: Way, *, every_logprob: bool = False) -> InlineEngine:
    """One generation agrees with the reference: perhaps the whole distribution at every position,
    not only its best."""
    width = lesson.references[0].logprobs.shape[1] if every_logprob else 8
    engine, comparison = lesson.run(way, width=width)
    print(f"{comparison}; {engine.graph_steps} of {engine.steps} steps were graphs")
    comparison.check()
    return engine


def check_scores(lesson: Lesson, way: Way) -> None:
    """As the end of a prompt, the reference's answer is as probable as it was to the reference."""
    engine = InlineEngine(lesson.folder, way)
    answered = [
        prompt + reference.tokens
        for prompt, reference in zip(lesson.prompts, lesson.references, strict=True)
    ]
    params = SamplingParams(sampling=GREEDY, max_tokens=0, logprobs=0, prompt_logprobs=1)
    engine.generate(answered, params, lambda sampled: sampled.token)
    worst = 0.0
    for number, reference in enumerate(lesson.references):
        count = len(reference.tokens)
        chosen, best = _scores(engine.scored[number])
        assert len(chosen) == len(answered[number]) - 1
        expected = reference.logprobs.max(axis=-1)
        worst = max(worst, float(np.abs(chosen[-count:] - expected).max()))
        clear = [reference.gap(index) > CLEAR_GAP[way.dtype] for index in range(count)]
        assert (best[-count:] == reference.tokens)[clear].all()
    print(f"log-probabilities of prompts' tokens within {worst:.1e}")
    assert worst <= TOLERANCE[way.dtype]


def _scores(pieces: Sequence[Logprobs]) -> tuple[np.ndarray, np.ndarray]:
    """A prompt's log-probabilities and the best token at each place, from its pieces."""
    chosen = np.frombuffer(b"".join(piece.chosen for piece in pieces), np.float32)
    best = [np.frombuffer(piece.top_ids, np.int32).reshape(-1, piece.width) for piece in pieces]
    return chosen, np.concatenate(best)[:, 0]


def check_prefix_cache(lesson: Lesson, way: Way) -> None:
    """Answers agree where nothing is cached yet, and again where all prompts are."""
    engine = InlineEngine(lesson.folder, way)
    for hits in (0, sum(_cacheable(prompt, way) for prompt in lesson.prompts)):
        before = engine.scheduler.usage().cached_tokens
        comparison = Comparison(lesson.references, way.dtype, forced=way.depth == 1)
        lesson.generate(engine, comparison)
        assert engine.scheduler.usage().cached_tokens - before == hits
        print(f"{hits} tokens cached: {comparison}")
        comparison.check()
    check_blocks(engine.scheduler.kv)


def _cacheable(prompt: Sequence[int], way: Way) -> int:
    """Tokens of a prompt's full blocks, but for its last token, which is always computed."""
    return (len(prompt) - 1) // way.block_size * way.block_size


def check_preemption(lesson: Lesson, way: Way) -> None:
    """Answers agree where the cache is too small for those that run."""
    longest = max(map(len, lesson.prompts)) + len(lesson.references[0].tokens)
    engine = check_way(lesson, replace(way, num_blocks=-(-longest // way.block_size) + 2))
    usage = engine.scheduler.usage()
    assert usage.preemptions > 0
    assert usage.kv_blocks_used == 0


def check_stops(lesson: Lesson, way: Way) -> None:
    """Texts that end at a token, which nobody can know ahead: the next step already holds a row for
    it, whose token is wasted, and the slot soon has another owner."""
    middle = len(lesson.references[0].tokens) // 2
    stops = frozenset(reference.tokens[middle] for reference in lesson.references)
    params = SamplingParams(
        sampling=GREEDY, max_tokens=2 * middle, ignore_eos=True, stop_token_ids=stops, logprobs=1
    )
    texts: dict[int, list[int]] = {}

    def keep(sampled: Sampled) -> int:
        texts.setdefault(sampled.prompt, []).append(sampled.token)
        return sampled.token

    InlineEngine(lesson.folder, way).generate(lesson.prompts, params, keep)
    expected = {
        number: _until(reference.tokens[: 2 * middle], stops)
        for number, reference in enumerate(lesson.references)
    }
    ends = sum(len(text) < 2 * middle for text in expected.values())
    equal = sum(texts[number] == text for number, text in expected.items())
    print(f"{equal} of {len(expected)} texts equal, {ends} of which end early")
    assert ends > len(expected) / 2
    assert equal >= STOPS_EQUAL * len(expected)


def _until(tokens: list[int], stops: frozenset[int]) -> list[int]:
    """Up to the first of these tokens, which is included."""
    ends = (index + 1 for index, token in enumerate(tokens) if token in stops)
    return tokens[: next(ends, len(tokens))]


def check_mutation(lesson: Lesson, way: Way, mutation: str) -> None:
    """A wrong step in the middle is noticed; without it the very same way passes."""
    engine, comparison = lesson.run(way)
    comparison.check()
    _, comparison = lesson.run(way, MUTATIONS[mutation](engine.steps // 2))
    with pytest.raises(AssertionError, match="log-probabilities within"):
        comparison.check()
