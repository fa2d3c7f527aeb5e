"""Other programs that embed: `python embedding_peer.py NAME FOLDER NUMBER`.

The number is that of threads, on a CPU in float32, or of texts in a batch, on CUDA in bfloat16.

Lists of texts come on standard input. The seconds and CPU seconds that embedding each took, with
its first vector, go to standard output, as lines of JSON. A cross-encoder's texts are pairs, and
its vector is a score. Nothing of this repository is needed: other programs have environments of
their own.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

Embed = Callable[[list], list]


def sentence_transformers(folder: str, threads: int) -> Embed:
    """sentence-transformers, in its batches of 32."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu")
    return lambda texts: model.encode(texts, batch_size=32)


def sentence_transformers_on_cuda(folder: str, batch: int) -> Embed:
    """sentence-transformers on a GPU."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cuda", model_kwargs={"dtype": "bfloat16"})
    return lambda texts: model.encode(texts, batch_size=batch)


def cross_encoder_on_cuda(folder: str, batch: int) -> Embed:
    """sentence-transformers' reranker on a GPU, its scores as they leave the model."""
    import torch
    from sentence_transformers import CrossEncoder

    raw = torch.nn.Identity()
    model = CrossEncoder(folder, device="cuda", model_kwargs={"dtype": "bfloat16"})
    return lambda pairs: model.predict(pairs, batch_size=batch, activation_fn=raw).reshape(-1, 1)


def infinity(folder: str, threads: int) -> Embed:
    """Infinity with torch, in batches of 32. Its engine runs for the length of a call."""
    import torch
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    torch.set_num_threads(threads)
    arguments = EngineArgs(
        model_name_or_path=folder, engine="torch", device="cpu", dtype="float32", batch_size=32
    )
    engine = AsyncEmbeddingEngine.from_args(arguments)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(engine.astart())
    return lambda texts: loop.run_until_complete(engine.embed(sentences=texts))[0]


def fastembed(folder: str, threads: int) -> Embed:
    """fastembed, with the model exported to ONNX, in batches of 32."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    exported = tempfile.mkdtemp()
    _export(folder, exported)
    TextEmbedding.add_custom_model(
        "exported", PoolingType.MEAN, True, ModelSource(url="none"), 384, "model.onnx"
    )
    model = TextEmbedding("exported", threads=threads, specific_model_path=exported)
    return lambda texts: list(model.embed(texts, batch_size=32))


def _export(folder: str, target: str) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    example = AutoTokenizer.from_pretrained(folder)(
        ["a text", "a longer text than that"], padding=True, return_tensors="pt"
    )

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, ids, mask, types):
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)[0]

    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        States(),
        tuple(example[name] for name in names),
        f"{target}/model.onnx",
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*names, "last_hidden_state"]},
        opset_version=17,
        dynamo=False,
    )
    for file in Path(folder).glob("*.json"):
        (Path(target) / file.name).write_bytes(file.read_bytes())


ON_CUDA = (sentence_transformers_on_cuda, cross_encoder_on_cuda)
PEERS = {each.__name__: each for each in (sentence_transformers, infinity, fastembed, *ON_CUDA)}


def main() -> None:
    """The process, until it is killed: not every program ends with its input."""
    name, folder, number = sys.argv[1:]
    output = sys.stdout
    sys.stdout = sys.stderr  # what libraries print
    embed = PEERS[name](folder, int(number))
    for line in sys.stdin:
        texts = json.loads(line)
        started, cpu = time.perf_counter(), time.process_time()
        vectors = embed(texts)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        first = [float(number) for number in vectors[0]]
        print(json.dumps({"seconds": seconds, "cpu": cpu, "first": first}), file=output, flush=True)


if __name__ == "__main__":
    main()
