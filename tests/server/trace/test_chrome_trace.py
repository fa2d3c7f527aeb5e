"""The trace of a pipeline: tracks, slices, and what they say."""

import json
from itertools import pairwise
from typing import Any

from engine_core.messages import TracedStep
from server.trace.chrome_trace import chrome_trace
from workers.contract.messages import StepTimes


def traced(
    step: int,
    times: list[StepTimes],
    *,
    tokens: int = 4,
    prompt_tokens: int = 0,
    continued: bool = True,
) -> TracedStep:
    return TracedStep(
        step=step,
        rows=4,
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        context_tokens=100,
        continued=continued,
        times=times,
    )


def times(start: int, wait: int, busy: int, transfer: int) -> StepTimes:
    return StepTimes(start_us=start, wait_us=wait, busy_us=busy, transfer_us=transfer)


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
    track = slices(events({"a": steps}, a=["cuda:0"]), 0)
    assert [(s["name"], s["ts"], s["dur"]) for s in track] == [
        ("decode", 1000, 300),
        ("transfer", 1300, 20),
        ("waiting", 1320, 0),
        ("decode", 1320, 195),
        ("transfer", 1515, 20),
    ]


def test_slices_of_a_track_do_not_overlap_and_kinds_have_colours_of_their_own() -> None:
    found = events({"a": STEPS}, a=["cpu", "cpu"])
    for stage in (0, 1):
        for before, after in pairwise(slices(found, stage)):
            assert before["ts"] + before["dur"] <= after["ts"]
    colours = {event["name"]: event["cname"] for event in found if event["ph"] == "X"}
    assert len(set(colours.values())) == len(colours) == 6


def test_a_slice_says_what_its_step_was() -> None:
    found = events({"a": STEPS}, a=["cpu", "cpu"])
    mixed = next(event for event in found if event["name"] == "mixed")
    assert mixed["args"] == {
        "step": 8,
        "rows": 4,
        "tokens": 34,
        "prompt_tokens": 30,
        "context_tokens": 100,
    }
