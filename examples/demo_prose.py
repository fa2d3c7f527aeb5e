"""Find the plain English prose of an HTML documentation page.

Keeps only the sentences that read as prose, under the heading they stand below: no
code, tables, signatures, option lists, indexes or change logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

Attributes = list[tuple[str, str | None]]

SKIPPED_TAGS = {"pre", "table", "script", "style", "nav", "footer", "svg", "button", "head"}
HEADING_TAGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
TEXT_TAGS = {"p", "li", "dd", "blockquote"}
BLOCK_TAGS = TEXT_TAGS | {"dt", "ul", "ol", "dl", "div", "section", "hr", "body", "main"}

FUNCTION_WORDS = frozenset(
    "a about all also an and any are as at be because been but by can cannot could do does "
    "each even every for from had has have how however if in into is it its itself just like "
    "many may might more most must new no not of often on one only or other our same should "
    "since so some such than that the their them then there these they this those through "
    "to two under until up use used using very was way we were what when where which while "
    "who why will with within without would you your".split()
)
PUNCTUATION = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": " - ",
        "\u2026": "...",
        "\u00a0": " ",
        "\u00b6": None,
    }
)
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|a\.k\.a|Dr|Mr|Mrs|St|No|Fig)\.$")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]{0,2}\s+(?=[\"(A-Z])")
CODE_SIGNS = re.compile(
    r"[_={}<>\\|#$@*~^\[\]%+&`\u00a7]"  # symbols that prose has no use for
    r"|\(\)|::|--|;\S|\.\.(?!\.)|:\S"  # calls, paths, options, ports
    r"|(?:^|\s)[-/.!]\w|\w/\s|/\w*/"  # options and file paths
    r"|[A-Za-z]\.[A-Za-z](?<!e\.g)(?<!i\.e)"  # dotted names
    r"|\d\w*[a-zA-Z]\d|''|\"\"|[^\x20-\x7e]"
)
CAMEL_CASE = re.compile(r"\b\w*[a-z][A-Z]\w*")
SHOUTED = re.compile(r"\b[A-Z]{2,}\b")
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
CHANGE_NOTE = re.compile(
    r"^(?:Changed|New|Deprecated|Added|Removed) in|^Deprecated since|^See also|"
    r"^Return type|^Availability|^Available|^Bases|^Copyright|^Source code|\bbpo\b|\bbug #"
)
REFERENCE = re.compile(r"\b(?:Table|Figure|Listing|Chapter|Section|Appendix|Example) [A-Z]?\d")
AUXILIARY = re.compile(
    r"\b(?:is|are|was|were|be|been|can|cannot|could|will|would|may|might|must|should|has|have|"
    r"had|does|do|did|need|needs|means|makes|takes|gives|uses|allows|\w+n't|\w+'(?:s|re|ll|ve))\b"
)
SECTION_NUMBER = re.compile(
    r"^(?:(?:Chapter|Appendix|Part|Section)\s+\w+\.\s*|[A-Z0-9]+(?:\.\d+)*\.\s+|\d+(?:\.\d+)+\s+)"
)


@dataclass
class Section:
    """A heading and the paragraphs below it, up to the next heading."""

    heading: str
    paragraphs: list[str] = field(default_factory=list)


class PageParser(HTMLParser):
    """Collects the headings and the running text of one HTML page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sections = [Section("")]
        self._skip: list[str] = []
        self._text: list[str] = []
        self._kind = ""

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        if tag in SKIPPED_TAGS:
            self._flush()
            self._skip.append(tag)
        elif not self._skip and (tag in BLOCK_TAGS or tag in HEADING_TAGS):
            self._flush()
            if tag in HEADING_TAGS:
                self._kind = "heading"
            elif tag in TEXT_TAGS:
                self._kind = "paragraph"
        elif tag == "br":
            self._text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skip:
            while self._skip.pop() != tag:
                pass
        elif not self._skip and (tag in BLOCK_TAGS or tag in HEADING_TAGS):
            self._flush()

    def handle_data(self, data: str) -> None:
        if self._kind and not self._skip:
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self._flush()

    def _flush(self) -> None:
        text = " ".join("".join(self._text).translate(PUNCTUATION).split())
        if self._kind == "heading" and text:
            self.sections.append(Section(clean_heading(text)))
        elif self._kind == "paragraph" and text:
            self.sections[-1].paragraphs.append(text)
        self._kind = ""
        self._text = []


def clean_heading(text: str) -> str:
    """Returns a heading without its section number, or '' where it is no phrase."""
    text = SECTION_NUMBER.sub("", text).strip(" #.")
    words = WORD.findall(text)
    plain = words and len(text) <= 70 and not CODE_SIGNS.search(text)
    return text if plain and not CAMEL_CASE.search(text) and text[0].isupper() else ""


def split_sentences(text: str) -> Iterator[str]:
    """Splits a paragraph into sentences, mindful of common abbreviations."""
    start = 0
    for match in SENTENCE_END.finditer(text):
        sentence = text[start : match.end()].strip()
        if not ABBREVIATION.search(sentence):
            yield sentence
            start = match.end()
    if text[start:].strip():
        yield text[start:].strip()


def is_prose(sentence: str) -> bool:
    """Whether a sentence is complete and free of code."""
    words = WORD.findall(sentence)
    if not 4 <= len(words) <= 60 or max(map(len, words)) > 20:
        return False
    if not re.match(r"[\"(]?[A-Z]", sentence) or not re.search(r"[.!?][\"')]{0,2}$", sentence):
        return False
    if any(sign.search(sentence) for sign in (CODE_SIGNS, CHANGE_NOTE, REFERENCE)):
        return False
    if sentence.count("(") != sentence.count(")") or sentence.count('"') % 2:
        return False
    if len(CAMEL_CASE.findall(sentence)) > 2 or len(SHOUTED.findall(sentence)) > 3:
        return False
    if sum(character.isdigit() for character in sentence) > 6:
        return False
    grammar = sum(word.lower() in FUNCTION_WORDS for word in words)
    return grammar >= 2 and grammar / len(words) >= 0.28


def clean_paragraph(text: str) -> str:
    """Returns the prose sentences of a paragraph, or '' where too few are left."""
    sentences = list(split_sentences(text))
    kept = [sentence for sentence in sentences if is_prose(sentence)]
    words = sum(len(WORD.findall(sentence)) for sentence in kept)
    if not kept or kept[0] != sentences[0] or words < 16 or 2 * len(kept) < len(sentences):
        return ""
    # A lone sentence without an auxiliary is often a noun phrase: "The name of an item."
    if len(kept) == 1 and words < 24 and not AUXILIARY.search(kept[0]):
        return ""
    return " ".join(kept)


def extract_page(data: bytes, seen: set[str]) -> list[Section]:
    """Returns the prose sections of a page, less paragraphs that were seen before."""
    parser = PageParser()
    parser.feed(data.decode("utf-8", errors="replace"))
    parser.close()
    sections: list[Section] = []
    for section in parser.sections:
        paragraphs = []
        for paragraph in map(clean_paragraph, section.paragraphs):
            if paragraph and paragraph not in seen:
                seen.add(paragraph)
                paragraphs.append(paragraph)
        if paragraphs:
            sections.append(Section(section.heading, paragraphs))
    return sections
