"""The flags of `penstock batch`. The command itself is imported when it runs."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from server.settings.settings import API_KEY_VARIABLE, ServeCommand

_DESCRIPTION = """\
Answer the requests of a file, one a line in OpenAI's batch format, and write the answers to another
in the same order. Requests that begin alike share what is computed of that, to the token.
"""
_EXAMPLES = """\
examples:
  penstock batch ./llama-3.1-8b -i requests.jsonl -o answers.jsonl
      with an engine of its own
  penstock batch --url http://127.0.0.1:8000 -i requests.jsonl -o answers.jsonl
      with a daemon that runs
  penstock batch ./llama-3.1-8b -i requests.jsonl -o answers.jsonl --resume
      go on with a job that was stopped or killed
"""

MakeCommand = Callable[[argparse.Namespace], ServeCommand]


def add_batch(parser: argparse.ArgumentParser, make_command: MakeCommand) -> None:
    """Add the flags of `penstock batch`. `make_command` reads those of models."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.usage = "penstock batch [MODEL ...] -i FILE -o FILE [options]"
    parser.set_defaults(run=partial(_run, make_command), parser=parser)
    group = parser.add_argument_group("the job")
    group.add_argument(
        "-i", "--input", type=Path, required=True, metavar="FILE", help="the requests"
    )
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the answers; until the end they are in FILE.part, in the order in which they come",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on with the answers in FILE.part, if there are any",
    )
    group.add_argument(
        "--url",
        help="a daemon that runs, such as http://127.0.0.1:8000, in place of engines of its own; "
        f"its API key is read from ${API_KEY_VARIABLE}",
    )


def _run(
    make_command: MakeCommand, parser: argparse.ArgumentParser, options: argparse.Namespace
) -> int:
    from server.batches.batch_command import BatchOptions, run_batch  # noqa: PLC0415

    if options.url is not None and (options.models or options.config is not None):
        parser.error("--url: a daemon has models of its own")
    answerer = make_command(options) if options.url is None else str(options.url)
    return run_batch(BatchOptions(options.input, options.output, options.resume, answerer))
