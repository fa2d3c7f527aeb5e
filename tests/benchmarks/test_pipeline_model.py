"""The planner's command: what it prints and what it refuses."""

import re
import sys

import msgspec
import pytest

from benchmarks import pipeline_model
from benchmarks.pipeline.step_times import interpolated, read_step_times


def printed(monkeypatch, capsys, *options: str) -> list[tuple[str, ...]]:
    """(case, pipelines, layers, figure) of each line."""
    monkeypatch.setattr(sys, "argv", ["pipeline_model", *options])
    pipeline_model.main()
    lines = capsys.readouterr().out.splitlines()
    line = re.compile(r"(\w+) +(\d+ x \d+) +(\d.*?\d) {2,}[\d,]+ +([\d,.]+) \S+ ")
    return [found.groups() for found in map(line.match, lines) if found is not None]


def test_a_line_for_each_case_and_number_of_stages(monkeypatch, capsys) -> None:
    lines = printed(monkeypatch, capsys, "--case", "long32k", "one", "--stages", "1", "2")
    assert [line[:3] for line in lines] == [
        ("long32k", "1 x 1", "32"),
        ("long32k", "1 x 2", "2 x 16"),
        ("one", "1 x 1", "32"),
        ("one", "1 x 2", "2 x 16"),
    ]
    # A long prompt gains from a second stage; one sequence that decodes does not.
    assert float(lines[1][3]) < 0.6 * float(lines[0][3])
    assert float(lines[3][3]) < float(lines[2][3])


def test_measured_times_replace_the_built_in_ones(monkeypatch, capsys, tmp_path) -> None:
    times = read_step_times()
    slower = [(tokens, 2 * ms) for tokens, ms in times.layers_ms]
    file = tmp_path / "times.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(times, layers_ms=slower)))
    options = ("--case", "one", "--stages", "1")
    (before,) = printed(monkeypatch, capsys, *options)
    (after,) = printed(monkeypatch, capsys, *options, "--times", str(file))
    assert 1.7 < float(before[3]) / float(after[3]) < 2.0


def test_more_pipelines_share_the_requests(monkeypatch, capsys) -> None:
    options = ("--case", "rand", "--scale", "0.25", "--gpus", "4", "--stages", "1", "4")
    apart, together = printed(monkeypatch, capsys, *options)
    quarter = ("--case", "rand", "--scale", "0.0625", "--stages", "1")
    (alone,) = printed(monkeypatch, capsys, *quarter)
    assert (apart[1], together[1], alone[1]) == ("4 x 1", "1 x 4", "1 x 1")
    assert float(apart[3]) == pytest.approx(4 * float(alone[3]), abs=0.3)


def test_a_slower_link_takes_longer_but_only_between_hosts(monkeypatch, capsys) -> None:
    options = ("--case", "long32k", "--shape", "llama70b", "--stages", "8")

    def seconds(*more: str) -> float:
        ((_, _, _, figure),) = printed(monkeypatch, capsys, *options, *more)
        return float(figure)

    on_one = seconds()
    assert on_one < seconds("--hosts", "2") < 0.9 * seconds("--hosts", "2", "--link", "10")
    # Each of two pipelines is on a host of its own.
    assert seconds("--hosts", "2", "--link", "10", "--gpus", "16") == on_one


def test_layers_go_to_the_faster_hosts(monkeypatch, capsys) -> None:
    options = ("--case", "one", "--shape", "llama70b", "--hosts", "2", "--stages", "16")
    for gpus, layers in {("h100",): "16 x 5", ("h100", "a100"): "8 x 7, 8 x 3"}.items():
        (line,) = printed(monkeypatch, capsys, *options, "--gpu", *gpus)
        assert line[2] == layers


def test_times_of_an_unknown_gpu_are_refused(monkeypatch, tmp_path) -> None:
    file = tmp_path / "times.json"
    file.write_bytes(msgspec.json.encode(read_step_times()).replace(b'"h200"', b'"tpu"'))
    monkeypatch.setattr(sys, "argv", ["pipeline_model", "--times", str(file)])
    with pytest.raises(SystemExit, match=r"tpu.*\$\.gpu"):
        pipeline_model.main()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--stages", "3", "--stage-layers", "16,16"), "--stage-layers"),
        (("--stages", "64"), "--pipeline-stages"),
        (("--times", "/nowhere.json"), "/nowhere.json"),
        (("--shape", "bge-base"), "--shape"),
        (("--shape", "llama405b", "--gpu", "h100", "--stages", "8"), "--stages"),
        (("--stages", "8", "--gpus", "12"), "--gpus"),
        (("--stages", "4", "--gpus", "12", "--hosts", "2"), "--gpus"),
        (("--stages", "4", "--gpus", "8", "--hosts", "2", "--gpu", "h200", "h100"), "--gpus"),
        (("--hosts", "3", "--gpu", "h200", "h100"), "--gpu:"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(monkeypatch, options, named) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeline_model", *options])
    with pytest.raises(SystemExit) as refused:
        pipeline_model.main()
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tables_are_read_between_their_entries() -> None:
    table = [(2, 10.0), (4, 30.0)]
    values = [interpolated(table, number) for number in (0, 1, 2, 3, 4, 8)]
    assert values == [0.0, 10.0, 10.0, 20.0, 30.0, 60.0]
