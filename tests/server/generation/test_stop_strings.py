import itertools

from hypothesis import given
from hypothesis import strategies as st

from server.generation.choice import StopStrings


def first_stop(text: str, stops: list[str]) -> int | None:
    """By definition: where the stop string begins that ends first (of two, the longer)."""
    found = [
        (end, end - len(stop))
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if text[end - len(stop) : end] == stop
    ]
    return min(found)[1] if found else None


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


# Two letters make overlaps, repeats and near misses common.
words = st.text(alphabet="ab", min_size=1, max_size=5)


@given(
    text=st.text(alphabet="ab", max_size=40),
    stops=st.lists(words, min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
)
def test_text_is_cut_at_the_first_stop_string_however_it_is_split(text, stops, cuts):
    matcher = StopStrings(tuple(stops))
    said = ""
    for piece in pieces_of(text, cuts):
        said += matcher.push(piece)
        assert text.startswith(said), "what has been said is never taken back"
        if matcher.found:
            break
    stop = first_stop(text, stops)
    assert matcher.found == (stop is not None)
    assert said + matcher.flush() == text[:stop]


@given(
    text=st.text(alphabet="ab", max_size=40),
    stops=st.lists(words, min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
)
def test_a_stop_string_that_is_included_holds_nothing_back(text, stops, cuts):
    matcher = StopStrings(tuple(stops), included=True)
    said = ""
    for piece in pieces_of(text, cuts):
        certain = matcher.push(piece)
        said += certain
        if matcher.found:
            break
        assert certain == piece
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert said + matcher.flush() == text[: min(ends, default=None)]


@given(
    text=st.text(alphabet="ab", max_size=40),
    stops=st.lists(words, min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
    least=st.integers(0, 14),
)
def test_only_what_is_complete_late_enough_ends_a_text(text, stops, cuts, least):
    matcher = StopStrings(tuple(stops))
    said, barred = "", 0
    for index, piece in enumerate(pieces_of(text, cuts)):
        may_end = index >= least
        barred += 0 if may_end else len(piece)
        said += matcher.push(piece, may_end=may_end)
        if matcher.found:
            break
    found = [
        (end, end - len(stop))
        for stop in stops
        for end in range(max(len(stop), barred + 1), len(text) + 1)
        if text[end - len(stop) : end] == stop
    ]
    assert matcher.found == bool(found)
    assert said + matcher.flush() == (text[: min(found)[1]] if found else text)


@given(text=st.text(max_size=30), stops=st.lists(st.text(min_size=1, max_size=4), min_size=1))
def test_stop_strings_of_any_characters(text, stops):
    matcher = StopStrings(tuple(stops))
    said = ""
    for char in text:
        said += matcher.push(char)
        if matcher.found:
            break
    assert said + matcher.flush() == text[: first_stop(text, stops)]


def test_only_what_may_become_a_stop_string_is_held_back():
    matcher = StopStrings(("END", "\n\n"))
    assert matcher.push("to the E") == "to the "
    assert matcher.push("N") == ""
    assert matcher.push("T") == "ENT"
    assert matcher.push(" one\n") == " one"
    assert matcher.push("\nmore") == ""
    assert matcher.found
