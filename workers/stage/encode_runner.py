"""A stage of an encoder: whole texts, nothing is kept between steps."""

from collections.abc import Sequence

import torch

from workers.attention.base import AttentionBackend
from workers.contract.config import WorkerConfig
from workers.contract.messages import EncodeStep, StepMask
from workers.heads.base import HeadResult
from workers.heads.encoder_head import encoder_head
from workers.layers.placement import Placement
from workers.models.layer_loop import forward
from workers.stage.model_runner import ModelRunner, stage_attention
from workers.stage.warm_up_steps import encode_steps
from workers.step.packed_step import PackedStep
from workers.weights.loader import TORCH_DTYPES, LoadedModel


class EncodeRunner(ModelRunner[EncodeStep, PackedStep]):
    """See `ModelRunner`."""

    def __init__(
        self, worker: WorkerConfig, loaded: LoadedModel, backends: Sequence[AttentionBackend]
    ) -> None:
        super().__init__(worker)
        config, model = worker.execution, loaded.model
        self._model = model
        placement = Placement(self.device, TORCH_DTYPES[config.dtype])
        self._attention = stage_attention(config, model, backends, (), placement)
        self._head = encoder_head(config, model)

    def prepare(self, message: EncodeStep) -> PackedStep:
        return PackedStep.of(message, self.device)

    def forward(self, batch: PackedStep, hidden: torch.Tensor | None) -> torch.Tensor:
        return forward(self._model, batch, hidden, self._attention.over(batch))

    def reuses_states(self, batch: PackedStep) -> bool:
        del batch
        return False

    def run_head(
        self, batch: PackedStep, hidden: torch.Tensor, mask: StepMask | None = None
    ) -> HeadResult:
        del mask  # nothing is sampled
        return self._head(batch, hidden)

    def warm_up(self) -> None:
        for message in encode_steps(self.config):
            self.run_alone(message)
