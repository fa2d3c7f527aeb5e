"""A checkpoint that recites the turns of scripts: a Llama whose head maps a token to the next.

Attention and MLP are zero, so that nothing but a token's embedding reaches the head. The chat
template ends a prompt with a token for the script that the conversation names and the number of the
turn. A token is a word and what stands behind it, which makes most of a script's tokens differ.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

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
    ends every other turn at once. Raises ValueError where a token would have two successors."""
    words = _words()
    marks = [END, "<|im_start|>"]
    successors: dict[str, str] = {}
    for name, turns in scripts.items():
        for number, turn in enumerate(turns, 1):
            marks.append(f"<|{name} {number}|>")
            pieces = [piece for piece, _ in words.pre_tokenize_str(turn)]
            for token, successor in pairwise([marks[-1], *pieces, END]):
                if successors.setdefault(token, successor) != successor:
                    raise ValueError(f"{token!r} has two successors, one in turn {marks[-1]}")
    tokenizer = _tokenizer(words, [token for token in successors if token not in marks], marks)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids: dict[str, int] = tokenizer.get_vocab()
    head = np.full(len(ids), ids[END])
    for token, successor in successors.items():
        head[ids[token]] = ids[successor]
    save_file(_tensors(head), folder / "model.safetensors")
    _write(folder / "config.json", _config(len(ids), ids[END]))
    template = _TEMPLATE.replace("SCRIPTS", json.dumps(list(scripts)))
    _write(folder / "tokenizer_config.json", {"chat_template": template, "eos_token": END})
    return folder


def _words() -> Any:
    """It cuts a text into words with what stands behind each, in the letters for bytes."""
    split = pre_tokenizers.Split(Regex(r"(</?)?\w+[^\w<]*|[^\w<]+|<"), "isolated")
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _tokenizer(words: Any, pieces: Iterable[str], marks: Sequence[str]) -> Tokenizer:
    """It reads marks, pieces and the beginnings of pieces as one token each, other words as bytes.

    A grammar that forces text lets the model write that text's own tokens only, or one that begins
    with the last few of them: a piece of which the beginning is forced.
    """
    beginnings = (piece[:size] for piece in pieces for size in range(2, len(piece) + 1))
    tokens = dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *beginnings])
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = words
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
