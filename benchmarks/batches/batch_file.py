"""`python -m benchmarks.batches.batch_file`: a case as a file of requests, and the same on the
engine itself.

The file's lines are completions of token ids; they go the way of `penstock batch`, through the
API's handlers, window by window. The engine is one and the same, its prefix cache emptied
in between.
"""

import argparse
import asyncio
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.batches.engine import add_engine_flags, case_of, measured_engine
from engine_core.messages import ResetCache
from server.batches.engine_backend import engine_backend
from server.batches.file_job import FileJob, LineRules
from server.batches.progress import progress_shown
from server.bench.measurement import Figures
from server.bench.offline import Continuations, timed
from server.bench.workloads import GenerationCase, offline_prompts
from server.daemon.run import RunningEngine
from server.settings.settings import ServerConfig


def write_file(file: Path, case: GenerationCase, prompts: Sequence[bytes]) -> None:
    """A line for each prompt."""
    with file.open("wb") as lines:
        for number, ids in enumerate(prompts):
            body = {
                "prompt": array("i", ids).tolist(),
                "max_tokens": case.outputs,
                "ignore_eos": True,
                "temperature": 0,
            }
            line = {
                "custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body,
            }  # fmt: skip
            lines.write(msgspec.json.encode(line) + b"\n")


async def engine_figures(
    engine: RunningEngine, case: GenerationCase, prompts: Sequence[bytes]
) -> Figures:
    """The prompts through the engine client."""
    engine.client.send(ResetCache())
    engine.client.batch = True
    return await timed("engine", Continuations(engine.engines, case, sorted(prompts)))


async def file_figures(
    engine: RunningEngine, case: GenerationCase, prompts: Sequence[bytes], folder: Path
) -> Figures:
    """The prompts as a file: from opening it to its answers in order."""
    source = folder / "in.jsonl"
    await asyncio.to_thread(write_file, source, case, prompts)
    engine.client.send(ResetCache())
    async with engine_backend(ServerConfig(models=(engine.model,))) as backend:
        rules = LineRules(max_line_bytes=1 << 20)
        job = FileJob(source, folder / "out.part", rules=rules, options={})
        async with progress_shown("file", "requests", len(prompts), lambda: job.summary.done):
            started = time.perf_counter()
            await job.open(resume=False)
            opened = time.perf_counter()
            await job.run(backend)
            answered = time.perf_counter()
            job.assemble(folder / "out.jsonl")
            seconds = time.perf_counter() - started
        job.remove()
    if job.summary.completed < len(prompts):
        raise SystemExit(f"{job.summary.failed} lines failed: see {folder / 'out.jsonl'}")
    return {
        "requests_per_s": len(prompts) / seconds,
        "seconds": seconds,
        "first_pass_s": opened - started,
        "assembly_s": started + seconds - answered,
        "saved_share": job.summary.saved_share,
        "output_tokens": job.summary.output_tokens,
    }


async def measure(given: argparse.Namespace) -> dict[str, Figures]:
    """Both, after a warm-up with other prompts."""
    case = case_of(given)
    prompts = offline_prompts(case)
    async with measured_engine(given) as engine:
        few = msgspec.structs.replace(case, count=min(case.count, 4))
        await engine_figures(engine, few, offline_prompts(few, seed=1)[:64])
        own = await engine_figures(engine, case, prompts)
        with tempfile.TemporaryDirectory() as folder:
            lines = await file_figures(engine, case, prompts, Path(folder))
    return {"engine": own, "file": lines}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batches.batch_file", description=__doc__
    )
    add_engine_flags(parser)
    given = parser.parse_args()
    figures = asyncio.run(measure(given))
    if given.json is not None:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    own, lines = figures["engine"], figures["file"]
    share = lines["requests_per_s"] / own["requests_per_s"]
    print(
        f"{given.case}: engine {own['requests_per_s']:.2f} req/s, file "
        f"{lines['requests_per_s']:.2f} req/s ({share:.3f}; goal 0.97), first pass "
        f"{lines['first_pass_s']:.2f} s, assembly {lines['assembly_s']:.2f} s, "
        f"{lines['saved_share']:.1%} saved"
    )


if __name__ == "__main__":
    main()
