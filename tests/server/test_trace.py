"""`penstock trace`: which daemon and models it means, and how it fails."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from engine_core.client import trace_client
from engine_core.messages import TracedStep, TracedSteps
from engine_core.tokenization.tokenizer import Tokenizer
from server import cli, trace
from server.daemon.run import RunningDaemon
from server.settings.settings import ServedModel
from server.trace import chrome_trace
from tests.server.conftest import Ended
from tests.server.fake_engine import FakeEngine, Script
from tests.server.support import served_model
from workers.contract.messages import StepTimes


def traced(step: int, times: list[StepTimes], **known: Any) -> TracedStep:
    usual: dict[str, Any] = {"tokens": 4, "prompt_tokens": 0, "continued": True}
    return TracedStep(step=step, rows=4, context_tokens=100, times=times, **usual | known)


def times(start: int, wait: int, busy: int, transfer: int) -> StepTimes:
    return StepTimes(start_us=start, wait_us=wait, busy_us=busy, transfer_us=transfer)


def measured() -> list[TracedSteps]:
    """Step 0, of before, and steps 1 and 2."""
    now = time.monotonic_ns() // 1000
    starts = (now - 10_000_000, now, now + 10)
    steps = [traced(step, [times(start, 0, 5, 0)]) for step, start in enumerate(starts)]
    return [TracedSteps(steps[:2], over=False), TracedSteps(steps[2:], over=True)]


class Machine(ExitStack):
    """The daemons that run: each serves `writer`, which is also called `chat`, and `ranker`."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.daemons: list[RunningDaemon] = []
        self.engines: dict[str, FakeEngine] = {}
        self._folder, self._tokenizer = folder, tokenizer

    def start(self, pid: int) -> None:
        models: list[ServedModel] = []
        for name, aliases in (("writer", ("chat",)), ("ranker", ())):
            endpoint = f"ipc://{self._folder}/{pid}.{name}"
            model = served_model(name, "generate", self._folder, endpoint, vocab_size=9)
            models.append(msgspec.structs.replace(model, aliases=aliases))
            engine = FakeEngine(endpoint, self._tokenizer, script=Script(traced=measured))
            self.engines[f"{pid}.{name}"] = self.enter_context(engine)
        self.daemons.append(RunningDaemon(pid, tuple(models)))

    def asked(self) -> dict[str, list[float]]:
        return {name: engine.traces for name, engine in self.engines.items()}


@pytest.fixture
def machine(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    monkeypatch.chdir(tmp_path)
    with Machine(tmp_path, tokenizer) as machine:
        monkeypatch.setattr(trace, "running_daemons", lambda: machine.daemons)
        yield machine


def steps_of(file: Path) -> dict[str, list[int]]:
    """The steps of each process of a trace."""
    events = json.loads(file.read_bytes())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {
        name: [e["args"]["step"] for e in events if e["name"] == "decode" and e["pid"] == process]
        for process, name in names.items()
    }


def test_all_models_of_the_only_daemon(machine: Machine, capsys) -> None:
    machine.start(11)
    assert cli.main(["trace"]) == 0
    assert steps_of(Path("trace.json")) == {"writer": [1, 2], "ranker": [1, 2]}
    assert capsys.readouterr().err == "wrote trace.json: 2 steps of writer, 2 steps of ranker\n"
    assert machine.asked() == {"11.writer": [5.0], "11.ranker": [5.0]}


def test_one_model_by_any_of_its_names_of_one_daemon_of_two(machine: Machine) -> None:
    machine.start(11)
    machine.start(12)
    arguments = "--pid 12 --seconds 0.5 --model chat -o chat.json"
    assert cli.main(["trace", *arguments.split()]) == 0
    assert steps_of(Path("chat.json")) == {"writer": [1, 2]}
    assert [*machine.asked().values()] == [[], [], [0.5], []]


@pytest.mark.parametrize(
    ("pids", "arguments", "says"),
    [
        ((), "", ""),
        ((11, 12), "", "--pid; those that run here: 11, 12"),
        ((11, 12), "--pid 13", "--pid; those that run here: 11, 12"),
        ((11,), "--model chat --model other", "other: the daemon serves writer, chat, ranker"),
        ((11,), "-o folder", "cannot write folder: Is a directory"),
        ((11,), "-o no/t.json", "cannot write no/t.json: No such file or directory"),
    ],
)
def test_what_cannot_be_is_known_before_the_trace(
    machine: Machine, capsys, pids: tuple[int, ...], arguments: str, says: str
) -> None:
    for pid in pids:
        machine.start(pid)
    Path("folder").mkdir()
    assert cli.main(["trace", *arguments.split()]) == 1
    assert capsys.readouterr().err.endswith(f"{says}\n" if pids else ", with this TMPDIR\n")
    assert not any(machine.asked().values())
    assert not Path("trace.json").exists()


@pytest.mark.parametrize("seconds", ["0", "-1", "60.5", "nan", "soon"])
def test_seconds_out_of_range(seconds: str, ended: Ended) -> None:
    said = ended(2, "trace", "--seconds", seconds)
    assert f"argument --seconds: {seconds!r} is not above 0" in said


@pytest.mark.parametrize("before", [None, "an older trace"])
def test_an_engine_that_does_not_answer_leaves_the_file_as_it_was(
    machine: Machine, capsys, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.setattr(trace_client, "_ANSWER_SECONDS", 0.2)
    machine.start(11)
    machine.engines["11.ranker"].script.traced = list
    if before is not None:
        Path("trace.json").write_text(before)
    assert cli.main(["trace"]) == 1
    assert "the engine of ranker does not answer" in capsys.readouterr().err
    assert (Path("trace.json").read_text() if Path("trace.json").exists() else None) == before


def test_ctrl_c(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.start(11)
    monkeypatch.setattr(trace, "trace_engines", Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["trace"]) == 130
    assert not Path("trace.json").exists()


STEPS = [
    traced(7, [times(1000, 0, 300, 20), times(900, 450, 310, 5)], tokens=30, prompt_tokens=30),
    traced(8, [times(1320, 0, 200, 20), times(1665, 0, 200, 0)], tokens=34, prompt_tokens=30),
    traced(9, [times(1600, 0, 50, 20), times(1865, 10, 60, 5)]),
    traced(10, [times(9000, 0, 50, 20), times(9000, 90, 60, 5)], continued=False),
]


def events(steps: dict[str, list[TracedStep]], **devices: list[str]) -> list[dict[str, Any]]:
    return json.loads(chrome_trace(steps, devices))["traceEvents"]


def slices(found: list[dict[str, Any]], stage: int) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == "X" and event["tid"] == stage]


def test_a_process_a_model_and_a_track_a_stage() -> None:
    found = events({"a": STEPS, "b": []}, a=["cuda:0", "cuda:1"], b=["cpu"])
    names = [(e["pid"], e["tid"], e["args"]["name"]) for e in found if e["ph"] == "M"]
    assert names == [
        (1, 0, "a"),
        (1, 0, "stage 0 (cuda:0)"),
        (1, 1, "stage 1 (cuda:1)"),
        (2, 0, "b"),
        (2, 0, "stage 0 (cpu)"),
    ]
    assert {event["pid"] for event in found if event["ph"] == "X"} == {1}


def test_a_stages_slices_are_what_it_did() -> None:
    found = events({"a": STEPS}, a=["cpu", "cpu"])
    assert [(s["name"], s["ts"], s["dur"], s["args"]["step"]) for s in slices(found, 1)] == [
        ("waiting", 900, 450, 7),
        ("prefill", 1350, 310, 7),
        ("transfer", 1660, 5, 7),
        ("mixed", 1665, 200, 8),
        ("waiting", 1865, 10, 9),
        ("decode", 1875, 60, 9),
        ("transfer", 1935, 5, 9),
        # There were no requests before step 10: that is no idle time.
        ("waiting", 9000, 90, 10),
        ("decode", 9090, 60, 10),
        ("transfer", 9150, 5, 10),
    ]
    idle = [(s["ts"], s["dur"], s["args"]["step"]) for s in slices(found, 0) if s["name"] == "idle"]
    assert idle == [(1540, 60, 9)]


def test_a_step_that_seems_to_begin_before_the_end_of_the_one_before() -> None:
    steps = [traced(1, [times(1000, 0, 300, 20)]), traced(2, [times(1310, 5, 200, 20)])]
    assert [(s["name"], s["ts"], s["dur"]) for s in slices(events({"a": steps}, a=["cpu"]), 0)] == [
        ("decode", 1000, 300),
        ("transfer", 1300, 20),
        ("waiting", 1320, 0),
        ("decode", 1320, 195),
        ("transfer", 1515, 20),
    ]


def test_slices_of_a_track_do_not_overlap_and_say_what_their_step_was() -> None:
    """Each kind has a colour of its own."""
    found = events({"a": STEPS}, a=["cpu", "cpu"])
    for stage in (0, 1):
        for before, after in pairwise(slices(found, stage)):
            assert before["ts"] + before["dur"] <= after["ts"]
    colours = {event["name"]: event["cname"] for event in found if event["ph"] == "X"}
    assert len(set(colours.values())) == len(colours) == 6
    mixed = next(event for event in found if event["name"] == "mixed")
    tokens = {"tokens": 34, "prompt_tokens": 30, "context_tokens": 100}
    assert mixed["args"] == {"step": 8, "rows": 4} | tokens
