"""The input of requests for vectors and labels: texts, token ids, or a conversation."""

from server.schemas.chat import Messages, TemplateVariables
from server.schemas.common import EncodeRequest, KeptTokens, TextOrIds


class InputOrChatRequest(EncodeRequest, kw_only=True, frozen=True):
    """The fields of requests that take `messages` in place of `input`."""

    input: TextOrIds | None = None
    """This or `messages` is required. As `prompt` of [completions](#post-v1completions), but an
    embedder takes no empty texts; over 2048 inputs: `too_large`; too long:
    `context_length_exceeded`."""
    messages: Messages | None = None
    """A [chat](#messages-chatmessage), whose prompt, by the [template](#chat-templates), is the one
    input; no [prompt](#prompts) of the model comes before it."""
    add_special_tokens: bool | None = None
    """Add special tokens to texts; a text without any token is refused. Default: true, but false
    for a chat."""
    add_generation_prompt: bool | None = None
    """End a chat's prompt with an answer's beginning; only with `messages`, like the next two.
    Default: false."""
    continue_final_message: bool | None = None
    """As in [chat](#post-v1chatcompletions). Default: false."""
    chat_template_kwargs: TemplateVariables | None = None
    """As in [chat](#post-v1chatcompletions). Default: `{}`."""
    truncate_prompt_tokens: KeptTokens | None = None
    """1 to the model's length, −1 for that: longer texts and ids are truncated, special tokens
    included."""
