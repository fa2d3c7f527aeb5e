"""Draw the training texts of the demo model from the prose of documentation pages.

A text is one to a few paragraphs in a row, or a conversation: a heading, a question
made of it, a first sentence or a general opening is the user's turn, the section's
paragraphs are the answers.
"""

from __future__ import annotations

import random
from typing import Any

from demo_prose import split_sentences

SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"

TOPIC_PROMPTS = [
    "{topic}",
    "{topic}?",
    "What is {topic}?",
    "What about {topic}?",
    "Tell me about {topic}.",
    "Please explain {topic}.",
    "How does {topic} work?",
    "Write a paragraph about {topic}.",
    "I have a question about {topic}.",
    "Can you describe {topic} in a few sentences?",
]
OPEN_PROMPTS = [
    "Hello!",
    "Hello",
    "Hi there, how are you?",
    "Say something.",
    "Tell me something.",
    "Tell me a story.",
    "Write a paragraph.",
    "Write a short text.",
    "What can you tell me?",
    "What should I know?",
    "Who are you?",
    "This is a test.",
    "Can you help me?",
]
FOLLOW_UPS = [
    "Tell me more.",
    "Go on.",
    "Please continue.",
    "Thanks. What else?",
    "And then?",
    "Why?",
    "What does that mean?",
    "Can you say more about that?",
]
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a friendly assistant who answers in plain English.",
    "Answer briefly.",
    "Be concise.",
    "You are a technical writer.",
]
# Headings that say nothing of the text below them.
PLAIN_HEADINGS = frozenset(
    {"", "Note", "Notes", "Description", "Parameters", "Explanation", "Summary", "Tip"}
    | {"Compatibility", "Introduction", "Example", "Examples", "Overview", "Options"}
    | {"Warning", "Caution", "Limitations", "Usage", "Details", "Arguments", "Background"}
)

CHAT_SHARE = 0.3
LONG_SHARE = 0.04


def make_chat(heading: str, paragraphs: list[str], rng: random.Random) -> tuple[str, list[str]]:
    """Builds a conversation from a section; returns it and the paragraphs not used."""
    text = SYSTEM + rng.choice(SYSTEM_PROMPTS) + END if rng.random() < 0.25 else ""
    rest = list(paragraphs)
    prompt, answer = opening_turn(heading, rest.pop(0), rng)
    while True:
        if rest and rng.random() < 0.35:
            answer += "\n\n" + rest.pop(0)
        text += USER + prompt + END + ASSISTANT + answer + END
        if not rest or rng.random() < 0.6:
            return text, rest
        prompt, answer = rng.choice(FOLLOW_UPS), rest.pop(0)


def opening_turn(heading: str, paragraph: str, rng: random.Random) -> tuple[str, str]:
    """Returns what the user asks first, and what the assistant answers."""
    sentences = list(split_sentences(paragraph))
    if len(sentences) > 2 and rng.random() < 0.25:
        return sentences[0], " ".join(sentences[1:])
    if heading in PLAIN_HEADINGS or rng.random() < 0.15:
        return rng.choice(OPEN_PROMPTS), paragraph
    topic = heading
    # Most people do not capitalize; a heading that ends in "?" is a question already.
    if not heading[:2].isupper() and rng.random() < 0.6:
        topic = heading[0].lower() + heading[1:]
    if heading.endswith("?"):
        return heading, paragraph
    return rng.choice(TOPIC_PROMPTS).format(topic=topic), paragraph


def make_documents(pages: list[dict[str, Any]], rng: random.Random) -> list[str]:
    """Builds one epoch's documents: conversations, and one to a few paragraphs of text."""
    documents: list[str] = []
    for page in pages:
        plain: list[str] = []
        for section in page["sections"]:
            rest = section["paragraphs"]
            if rng.random() < CHAT_SHARE:
                chat, rest = make_chat(section["heading"], rest, rng)
                documents.append(chat)
            plain += rest
        long = rng.random() < LONG_SHARE
        while plain:
            # Mostly short documents, so that the end of a text is likely at a paragraph's end.
            count = 1 if rng.random() < 0.3 else 2
            while count > 1 and rng.random() < 0.4:
                count += 1
            count = len(plain) if long else count
            documents.append("\n\n".join(plain[:count]))
            plain = plain[count:]
    rng.shuffle(documents)
    return documents
