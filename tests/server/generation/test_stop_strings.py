import itertools

from hypothesis import given
from hypothesis import strategies as st

from server.generation.choice import StopStrings


def first_stop(text: str, stops: list[str], barred: int = 0) -> tuple[int, int] | None:
    """By definition: where the stop string ends that ends first (of two, the longer), behind the
    `barred` characters, and where it begins."""
    found = [
        (end, end - len(stop))
        for stop in stops
        for end in range(max(len(stop), barred + 1), len(text) + 1)
        if text[end - len(stop) : end] == stop
    ]
    return min(found, default=None)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


# Two letters make overlaps, repeats and near misses common.
texts = st.text("ab", max_size=40) | st.text(max_size=30)
stop_strings = st.lists(
    st.text("ab", min_size=1, max_size=5) | st.text(min_size=1, max_size=4), min_size=1, max_size=4
)
splits = st.lists(st.integers(0, 1000), max_size=12)


@given(texts, stop_strings, splits, st.just(0) | st.integers(0, 14))
def test_text_is_cut_at_the_first_stop_string_that_is_complete_late_enough(
    text, stops, cuts, least
):
    """However it is split."""
    matcher = StopStrings(tuple(stops))
    said, barred = "", 0
    for index, piece in enumerate(pieces_of(text, cuts)):
        may_end = index >= least
        barred += 0 if may_end else len(piece)
        said += matcher.push(piece, may_end=may_end)
        assert text.startswith(said), "what has been said is never taken back"
        if matcher.found:
            break
    stop = first_stop(text, stops, barred)
    assert matcher.found == (stop is not None)
    assert said + matcher.flush() == (text if stop is None else text[: stop[1]])


@given(texts, stop_strings, splits)
def test_a_stop_string_that_is_included_holds_nothing_back(text, stops, cuts):
    matcher = StopStrings(tuple(stops), included=True)
    said = ""
    for piece in pieces_of(text, cuts):
        certain = matcher.push(piece)
        said += certain
        if matcher.found:
            break
        assert certain == piece
    stop = first_stop(text, stops)
    assert said + matcher.flush() == (text if stop is None else text[: stop[0]])


def test_only_what_may_become_a_stop_string_is_held_back():
    matcher = StopStrings(("END", "\n\n"))
    assert matcher.push("to the E") == "to the "
    assert matcher.push("N") == ""
    assert matcher.push("T") == "ENT"
    assert matcher.push(" one\n") == " one"
    assert matcher.push("\nmore") == ""
    assert matcher.found
