"""Chat templates in the manners of real models, and builder whose models have them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine_core.tokenization.tokenizer import Tokenizer
from server.settings.settings import Limits
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import ANY_PRIORITY, served_model, server_config, write_tokenizer

TOKENS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}

CHATML = """\
{%- if messages[0]['role'] != 'system' -%}
    {{- '<|im_start|>system\\nYou are a gate keeper.<|im_end|>\\n' -}}
{%- endif -%}
{% for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.content is string %}{{ message.content }}{% endif -%}
    {% for call in message.tool_calls or [] %}
        {{- '<call>' + call.function | tojson + '</call>' -}}
    {% endfor %}
    {{- '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think></think>' }}
    {%- endif %}
{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- set ns = namespace(seen=0) %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {%- set ns.seen = ns.seen + 1 %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}
{%- endfor %}
{{- '[' ~ ns.seen ~ ']' }}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- set before = system + '\\n\\n' if loop.last and system is defined else '' %}
        {{- '[INST] ' + before + message['content'] + '[/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

ENDLESS = """\
{% if messages[0].content == 'hang' %}
{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}
{% endif %}
{{- messages[0].content * (40000000 if messages[0].content == 'grow' else 1) }}
"""


def write_template(folder: Path, template: object, **config: object) -> None:
    """A tokenizer's configuration with `template` in it."""
    settings = {**TOKENS, "chat_template": template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@contextmanager
def chat_deployment(
    tokenizer: Tokenizer,
    templates: Mapping[str, object],
    limits: Limits = ANY_PRIORITY,
    **fields: Any,
) -> Iterator[Deployment]:
    """A deployment with a generator for each template, by its name; None is a model without one.
    `fields` are the configuration's."""
    with TemporaryDirectory(prefix="penstock-") as name:
        root, models = Path(name), []
        for index, (model, template) in enumerate(templates.items()):
            folder = root / str(index)
            folder.mkdir()
            write_tokenizer(folder)
            if template is not None:
                write_template(folder, template)
            endpoint = f"ipc://{root}/{index}.client"
            size = tokenizer.raw.get_vocab_size()
            models.append(served_model(model, "generate", folder, endpoint, vocab_size=size))
        with DeploymentBuilder(root, tokenizer) as builder:
            yield builder.open(server_config(*models, limits=limits, **fields))
