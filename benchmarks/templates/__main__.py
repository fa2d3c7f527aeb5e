"""`python -m benchmarks.templates FOLDER`: prompts of a folder's chat templates (*.jinja, of any
depth), as penstock and as transformers make them of the same messages.

penstock's are made by the template's process from messages as clients send them; transformers' by
`apply_chat_template` from the messages in the forms that penstock has probed. Every text of a
message has a word of its own, so that a prompt shows what it has lost.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from benchmarks.templates.conversations import CONVERSATIONS, JSON, REASONING_WORD, words_of
from engine_core.messages import NO_KEY
from engine_core.refusal import RefusalError
from server.generation.conversation import ChatOptions, conversation
from server.schemas.chat import ChatMessage
from server.templates.loaded_template import LoadedTemplate, kinds_of
from server.templates.protocol import Conversation, frame
from server.templates.template_client import TemplateClient
from server.templates.template_files import read_chat_template

_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_OPTIONS = ChatOptions(add_generation_prompt=None, continue_final_message=None, variables={})
_COLUMNS = (
    "equal", "refused by name", "refused by the template", "only here", "different", "lost",
    "needless",
)  # fmt: skip


class Outcome(NamedTuple):
    """What became of a conversation; `lost_as_written` if transformers loses text of it, given the
    messages as the client wrote them."""

    conversation: str
    result: str
    detail: str = ""
    lost_as_written: bool = False


class Reference:
    """transformers, with one template."""

    def __init__(self, source: str) -> None:
        """`source` is the template's."""
        tokenizer = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
        self._tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_TOKENS)
        self._source = source

    def prompt(self, messages: list[JSON]) -> str | None:
        """The prompt; None if the template refuses the messages."""
        with suppress(Exception):
            prompt = self._tokenizer.apply_chat_template(
                messages, chat_template=self._source, tokenize=False, add_generation_prompt=True
            )
            return str(prompt)
        return None


async def outcomes_of(source: str) -> list[Outcome]:
    """An outcome for each conversation. Raises TemplateError for a template that is none."""
    with TemporaryDirectory(prefix="penstock-") as name:
        folder = Path(name)
        (folder / "chat_template.jinja").write_text(source)
        (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENS))
        loaded = LoadedTemplate(read_chat_template(folder))
        client, reference = TemplateClient("model", folder), Reference(source)
        client.start()
        try:
            return [
                await _outcome(name, messages, client, loaded, reference)
                for name, messages in CONVERSATIONS.items()
            ]
        finally:
            await client.close()


async def _outcome(
    name: str,
    messages: list[JSON],
    client: TemplateClient,
    loaded: LoadedTemplate,
    reference: Reference,
) -> Outcome:
    parsed = msgspec.convert(messages, list[ChatMessage])
    as_written = reference.prompt(_with_objects(messages))
    lost_as_written = as_written is not None and not _has_all(as_written, messages)
    try:
        asked = await conversation(parsed, _OPTIONS, client.template)
    except RefusalError as error:  # of any template
        return Outcome(name, "refused by name", error.message, lost_as_written)
    expected = reference.prompt(_shaped(loaded, asked))
    try:
        prompt = (await client.prompt_of(frame(asked), NO_KEY)).prompt
    except RefusalError as error:
        result = _refused(error, expected, messages)
        return Outcome(name, result, error.message, lost_as_written)
    if not _has_all(prompt, messages):
        return Outcome(name, "lost", "", lost_as_written)
    result = "only here" if expected is None else "equal" if prompt == expected else "different"
    return Outcome(name, result, "", lost_as_written)


def _refused(error: RefusalError, expected: str | None, messages: list[JSON]) -> str:
    """What a refusal is beside the prompt of transformers, if that has one."""
    if error.param == "messages":
        return "refused by the template" if expected is None else "different"
    if expected is not None and _has_all(expected, messages, reasoning=True):
        return "needless"
    return "refused by name"


def _shaped(loaded: LoadedTemplate, asked: Conversation) -> list[JSON]:
    """The messages in the forms that the template takes, also of what is refused."""
    manners = loaded.manners
    return manners.shaped(asked.messages, kinds_of(asked.messages))


def _with_objects(messages: list[JSON]) -> list[JSON]:
    """With the arguments of calls as objects, as transformers documents them."""
    copied: list[JSON] = json.loads(json.dumps(messages))
    for call in (call for message in copied for call in message.get("tool_calls", [])):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return copied


def _has_all(prompt: str, messages: list[JSON], *, reasoning: bool = False) -> bool:
    """Whether a prompt has every word of the messages, that of reasoning only if asked for."""
    text, words = prompt.lower(), words_of(messages)
    return all(word in text for word in words if reasoning or word != REASONING_WORD)


def templates_of(folder: Path) -> Iterator[tuple[Path, str]]:
    """Those of a folder, each once."""
    seen: set[str] = set()
    for file in sorted(folder.rglob("*.jinja")):
        source = file.read_text("utf-8")
        if source not in seen:
            seen.add(source)
            yield file.relative_to(folder), source


def main() -> None:
    """A line for each outcome that is not as it should be, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds templates in files *.jinja")
    folder: Path = parser.parse_args().folder
    found: list[Outcome] = []
    collections: Counter[str] = Counter()
    for file, source in templates_of(folder):
        try:
            outcomes = asyncio.run(outcomes_of(source))
        except TemplateError as error:
            print(f"{file}: is no template: {error}")
            continue
        collections[file.parts[0]] += 1
        found += outcomes
        for each in outcomes:
            if each.result in ("different", "lost", "needless"):
                print(f"{file}: {each.conversation}: {each.result} {each.detail}", flush=True)
    print(f"\n{collections.total()} templates: {dict(collections)}\n")
    print(_table(found))


def _table(found: list[Outcome]) -> str:
    lines = [f"| conversation | {' | '.join(_COLUMNS)} | lost as written |", "| --- " * 9 + "|"]
    for name in (*CONVERSATIONS, "all"):
        own = [each for each in found if name in ("all", each.conversation)]
        counts: Counter[Any] = Counter(each.result for each in own)
        cells = [counts[column] for column in _COLUMNS]
        lost = sum(each.lost_as_written for each in own)
        lines.append(f"| {name} | {' | '.join(map(str, cells))} | {lost} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
