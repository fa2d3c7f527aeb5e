"""Families and their series, as Prometheus sees them."""

from prometheus_client.core import Metric

from server.observe.families import Family, SharedCells, place

MODELS = {"model": ("writer", "ranker")}


def samples(metric: Metric) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for s in metric.samples}


def test_families_lie_side_by_side() -> None:
    families = [
        Family("counter", "rows", "Rows.", {**MODELS, "reason": ("stop", "length")}),
        Family("histogram", "seconds", "Seconds.", MODELS, (0.1, 1)),
        Family("gauge", "in_flight", "Requests.", {"what": ("requests",)}),
    ]
    assert place(families) == 4 + 2 * 4 + 1
    assert [family.first for family in families] == [0, 4, 12]
    cells = SharedCells(13, [], 0)
    for number in range(13):
        cells.own[number] = number
    rows, seconds, in_flight = (samples(family.metric(cells.sums())) for family in families)
    assert rows == {
        ("rows_total", "writer", "stop"): 0,
        ("rows_total", "writer", "length"): 1,
        ("rows_total", "ranker", "stop"): 2,
        ("rows_total", "ranker", "length"): 3,
    }
    assert seconds["seconds_bucket", "ranker", "1.0"] == 8 + 9
    assert seconds["seconds_sum", "ranker"] == 11
    assert in_flight == {("in_flight", "requests"): 12}


def test_a_value_is_in_the_bucket_whose_bound_it_does_not_pass() -> None:
    family = Family("histogram", "seconds", "Seconds.", MODELS, (0.1, 1))
    cells = SharedCells(place([family]), [], 0)
    ranker = family.distribution(cells.own, "ranker")
    for value in (0.05, 0.1, 0.5, 3.0):
        ranker.observe(value)
    shown = samples(family.metric(cells.sums()))
    assert shown["seconds_bucket", "ranker", "0.1"] == 2
    assert shown["seconds_bucket", "ranker", "1.0"] == 3
    assert shown["seconds_bucket", "ranker", "+Inf"] == shown["seconds_count", "ranker"] == 4
    assert shown["seconds_sum", "ranker"] == 3.65
    assert shown["seconds_count", "writer"] == 0


def test_a_large_family_is_shown_without_what_never_happened() -> None:
    family = Family("counter", "rows", "Rows.", MODELS, shows_zeros=False)
    cells = SharedCells(place([family]), [], 0)
    family.count(cells.own, "ranker").add(2)
    assert samples(family.metric(cells.sums())) == {("rows_total", "ranker"): 2}
