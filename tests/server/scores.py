"""Scored tokens of prompts that no engine has computed."""

from server.generation.scores import ScoredToken
from server.service.token_text import TokenText

WIDTH = 20


class Names(TokenText):
    """No tokenizer is needed."""

    def __init__(self) -> None:
        """Every id has a name."""

    def __getitem__(self, token: int) -> str:
        return f"<{token}>"


def scored(count: int) -> list[ScoredToken]:
    """So many, with WIDTH alternatives each; the first has none."""
    likeliest = [(other, -0.5 - other) for other in range(WIDTH)]
    first = ScoredToken(7, None, [])
    return [first, *(ScoredToken(7 + i, -1.5, likeliest, 3, 4 * i) for i in range(1, count))][
        :count
    ]
