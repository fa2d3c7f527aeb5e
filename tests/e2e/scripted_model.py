"""A checkpoint that recites: each turn of a script, by a Llama whose head maps a token to the next.

Attention and MLP are zero, so a token's embedding alone reaches the head. The chat template ends a
prompt with a token for the script that the conversation names, and for the number of the turn.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Script = Sequence[str]

END = "<|im_end|>"
_TEMPLATE = """\
{%- set said = namespace(text='') -%}
{%- for message in messages -%}
    {%- set said.text = said.text ~ (message.content or '') -%}
{%- endfor -%}
{#- dspy writes what has been done into one message. -#}
{%- set said.turn = said.text.split('[[ ## observation_') | length -%}
{%- set script = (SCRIPTS | select('in', said.text) | list + ['']) | first -%}
{%- macro start() -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if script %}{{ '<|' ~ script ~ ' ' ~ said.turn ~ '|>' }}{% endif -%}
{%- endmacro -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n<tools>' -}}
    {%- for tool in tools %}{{ '\\n' ~ (tool | tojson) }}{% endfor -%}
    {{- '\\n</tools><|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- start() ~ (message.content or '') -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
            {{- (call.function.arguments | tojson) ~ '}\\n</tool_call>' -}}
        {%- endfor -%}
        {%- set said.turn = said.turn + 1 -%}
    {%- elif message.role == 'tool' -%}
        {{- '<|im_start|>user\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' -}}
    {%- else -%}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content -}}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ start() }}{% endif -%}
"""


def write_scripted_model(folder: Path, scripts: Mapping[str, Script]) -> Path:
    """The folder, with a model that recites a script's turns where a message names the script. It
    ends every other turn at once."""
    vocabulary = _Vocabulary()
    marks = [END, "<|im_start|>"]
    following: dict[str, str] = {}
    for name, turns in scripts.items():
        for number, turn in enumerate(turns, 1):
            mark = f"<|{name} {number}|>"
            marks.append(mark)
            chain = [mark, *vocabulary.cut(turn), END]
            following.update(pairwise(chain))
    tokenizer = vocabulary.tokenizer(marks)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids: dict[str, int] = tokenizer.get_vocab()
    size = len(ids) + -len(ids) % 8
    ending = ids[END]
    head = np.full(size, ending)
    for token, then in following.items():
        head[ids[token]] = ids[then]
    save_file(_tensors(head), folder / "model.safetensors")
    _write(folder / "config.json", _config(size, ending))
    template = _TEMPLATE.replace("SCRIPTS", json.dumps(list(scripts)))
    _write(folder / "tokenizer_config.json", {"chat_template": template, "eos_token": END})
    return folder


class _Vocabulary:
    """Bytes, and pieces of text of which each is cut out once."""

    def __init__(self) -> None:
        self._bytes = sorted(pre_tokenizers.ByteLevel.alphabet())
        self._pieces: dict[str, None] = {}

    def cut(self, text: str) -> list[str]:
        """The text in the shortest pieces that nothing has been cut into yet. They end anywhere:
        within a character or a marker."""
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        rest = "".join(word for word, _ in whole.pre_tokenize_str(text))
        pieces: list[str] = []
        while rest:
            prefixes = (rest[:size] for size in range(1, len(rest) + 1))
            piece = next((each for each in prefixes if each not in self._pieces), None)
            if piece is None:  # a longer one before it leaves another rest
                rest = pieces.pop() + rest
            else:
                self._pieces[piece] = None
                pieces.append(piece)
                rest = rest[len(piece) :]
        return pieces

    def tokenizer(self, marks: Sequence[str]) -> Tokenizer:
        """It reads a text as bytes and marks. The pieces are for the model to write only."""
        tokens = dict.fromkeys([*self._bytes, *self._pieces])
        vocabulary = {token: number for number, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
        tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
        tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in marks])
        return tokenizer


def _config(size: int, ending: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": size,
        "hidden_size": size,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 1 << 16,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": ending,
    }


def _tensors(head: np.ndarray) -> dict[str, np.ndarray]:
    """The weights of a model that writes `head[token]` behind `token`, at any temperature."""
    size = len(head)
    shapes = {
        "self_attn.q_proj": (8, size),
        "self_attn.k_proj": (8, size),
        "self_attn.v_proj": (8, size),
        "self_attn.o_proj": (size, 8),
        "mlp.gate_proj": (8, size),
        "mlp.up_proj": (8, size),
        "mlp.down_proj": (size, 8),
        "input_layernorm": (size,),
        "post_attention_layernorm": (size,),
    }
    layer = {
        f"model.layers.0.{name}.weight": np.zeros(shape, np.float32)
        for name, shape in shapes.items()
    }
    one_hot = np.eye(size, dtype=np.float32)
    return layer | {
        "model.embed_tokens.weight": one_hot,
        "model.norm.weight": np.ones(size, np.float32),
        "lm_head.weight": np.ascontiguousarray(one_hot[head].T),
    }


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
