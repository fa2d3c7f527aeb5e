"""A job much larger than what an engine takes at once, in any order."""

import random
import re
from pathlib import Path

import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.batch_files.batch_command import finished, request, write_lines

GROUPS, MEMBERS = 130, 7


def saved_tokens(folder: Path, source: Path, max_sequences: int) -> int:
    """What a job saves with an engine that takes so many sequences at once."""
    config = folder / f"{max_sequences}.yaml"
    model = f"model: {demo_models()[GENERATOR_NAME]}\n    threads: 1"
    config.write_text(f"max_sequences: {max_sequences}\nmodels:\n  - {model}\n")
    output = folder / f"{max_sequences}.jsonl"
    code, said, complained = finished(source, output, "--config", str(config))
    assert code == 0, complained
    assert f"{GROUPS * MEMBERS} requests (0 failed)" in said
    found = re.search(r"([\d,]+) of them saved", said)
    assert found is not None
    return int(found[1].replace(",", ""))


@pytest.mark.long
def test_a_shuffled_job_of_many_windows_saves_what_one_window_would(tmp_path: Path) -> None:
    """Documents of 40 words, each behind the same instructions, with seven questions each."""
    words = [f"word{number} " for number in range(500)]
    documents = ["".join(random.Random(seed).choices(words, k=40)) for seed in range(GROUPS)]
    lines = [
        request(
            f"{number} {question}",
            "/v1/completions",
            prompt=f"{'Read this and answer. ' * 4}{text}Question {question}?",
            max_tokens=1,
        )
        for number, text in enumerate(documents)
        for question in range(MEMBERS)
    ]
    random.Random(1).shuffle(lines)
    source = write_lines(tmp_path / "in.jsonl", *lines)
    # A window is half of what an engine takes: one with 40,000 sequences, four with 256.
    one_window = saved_tokens(tmp_path, source, 40_000)
    assert saved_tokens(tmp_path, source, 256) >= 0.98 * one_window
