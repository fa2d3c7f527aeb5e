"""Every setting with a value of its own, as the configuration file has it and as it is read."""

from pathlib import Path

import msgspec
import yaml

from server.settings.settings import Settings

EVERYTHING = """
default_model: gpt-4o
host: 0.0.0.0
port: 9000
api_workers: 2
api_key_files: [keys, /run/keys]
tls_cert: tls/server.crt
tls_key: ~/server.key
share_prefixes: [shop, all]
cors_origins: [https://chat.example.org, "*"]
strict_fields: true
metrics_alias: vllm
metrics_key: true
access_log: json
otlp_traces_endpoint: https://collector/v1/traces
max_sequences: 20
max_body_size: 2MiB
max_unread_size: 6MiB
vector_cache_size: 7MiB
max_unread_seconds: 9
max_inputs: 30
max_documents: 40
max_n: 50
max_queue_seconds: 60
state_dir: ~/state
max_file_size: 1GiB
max_file_lines: 70
max_stored_size: 2GiB
priority_range: "-5:6"
max_priority_wait: 4
max_request_seconds: 80
memory_share: 0.8
executor: ray
ray_address: 10.0.0.1:6379
nodes: 2
master: "[fd00::1]:7000"
cluster_secret_file: secret
interface: eth1
startup_timeout: 60
drain_timeout: 1.5
stall_timeout: 45
max_restarts: 5
log_level: debug
models:
  - model: ./writer
    names: [chat, gpt-4o]
    device: cuda:1
    dtype: bfloat16
    quantization: fp8
    task: embed
    ignore_config_keys: [a, b.c]
    load_format: dummy
    attention_backend: triton
    pipeline_stages: 2
    data_parallel_size: 3
    stage_layers: [9, 8]
    steps_ahead: 0
    disable_cascade_attn: true
    transport: peer-memory
    max_model_len: 1000
    max_running: 16
    max_step_tokens: 512
    max_step_rows: 64
    block_size: 32
    kv_cache_dtype: fp8
    kv_cache_memory: 1.5 GiB
    threads: 4
    memory_share: 0.5
    max_queue_seconds: 2.5
    rerank:
      pieces: ["A: {query}", "B: {document}", "Yes or No?"]
      positive: "Yes"
  - model: BAAI/bge-base-en-v1.5
    stage_layers: 4, 8
    kv_cache_memory: 1000
    max_running:
"""


def everything(folder: Path) -> Settings:
    """EVERYTHING, read from a file in `folder` by a user whose home is /home/me."""
    written = yaml.safe_load(EVERYTHING)
    writer, embedder = written["models"]
    read = {
        "api_key_files": [f"{folder}/keys", "/run/keys"],
        "tls_cert": f"{folder}/tls/server.crt",
        "tls_key": "/home/me/server.key",
        "state_dir": "/home/me/state",
        "cluster_secret_file": f"{folder}/secret",
        "max_body_size": 2 << 20,
        "max_unread_size": 6 << 20,
        "vector_cache_size": 7 << 20,
        "max_file_size": 1 << 30,
        "max_stored_size": 2 << 30,
        "priority_range": [-5, 6],
        "models": [
            writer | {"model": f"{folder}/writer", "kv_cache_memory": 3 << 29},
            {"model": embedder["model"], "stage_layers": [4, 8], "kv_cache_memory": 1000},
        ],
    }
    return msgspec.convert(written | read, Settings)
