import pytest

from benchmarks.report import Budget, CaseReport, Figure, number, table


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.0123"), (1.617, "1.62"), (4.0, "4"), (99.94, "99.9"), (53_065.4, "53,065")],
)
def test_numbers_have_three_digits_or_their_whole_part(value, text):
    assert number(value) == text


def test_a_budget_is_an_upper_or_a_lower_bound_and_is_met_at_the_bound():
    at_most = [Figure("", value, "µs", Budget(350)).verdict for value in (349, 350, 351)]
    assert at_most == ["pass", "pass", "miss"]
    at_least = Budget(0.8, at_least=True)
    assert [Figure("", value, "x", at_least).verdict for value in (0.79, 0.8)] == ["miss", "pass"]
    assert not Figure("", 1, "s").verdict


def test_a_table_lines_up_values_and_budgets():
    figures = [
        Figure("a step", 1234.5, "µs", Budget(150), "slow"),
        Figure("streams", 9, "x", Budget(4, at_least=True)),
        Figure("a plain number", 0.5, "s"),
    ]
    assert table(CaseReport("case", "Title", figures)).splitlines() == [
        "Title",
        "  a step          1,234  µs  ≤ 150  miss  slow",
        "  streams             9  x   ≥ 4    pass",
        "  a plain number    0.5  s",
    ]


def test_a_case_that_could_not_be_measured_says_why():
    report = CaseReport("case", "Title", not_measured="wrk is not installed")
    assert table(report) == "Title\n  not measured: wrk is not installed\n"
