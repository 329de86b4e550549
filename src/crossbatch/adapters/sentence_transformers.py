"""sentence-transformers: a loss with a bank for text dual encoders, and a callback that saves it.

    loss = CrossBatchLoss(model, capacity=4096)
    trainer = SentenceTransformerTrainer(
        model, train_dataset=pairs, loss=loss, callbacks=[SaveBank(loss)]
    )

Columns are those of `MultipleNegativesRankingLoss`: anchor, positive, and any hard negatives. With
`capacity=0` and distinct positives the two losses are equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crossbatch.adapters import needs
from crossbatch.negatives import Candidates, CrossBatchSoftmax

with needs("text"):
    from safetensors.torch import load_file, save_file
    from transformers import TrainerCallback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sentence_transformers import SentenceTransformer
    from transformers import TrainerControl, TrainerState, TrainingArguments

FILE = "crossbatch_loss.safetensors"
SEED = 0  # of the text hash; must not change


class CrossBatchLoss(nn.Module):
    """`CrossBatchSoftmax` over the sentence vectors of (anchor, positive, negatives …).

    A row must not meet its own positive as a negative, so positives need an identity: an integer
    column `label` of the data if there is one, else a hash of the text's tokens.

    Args:
        model: Encodes both sides.
        capacity: Earlier positives that serve as negatives.
        warmup_steps: Steps before they do.
        temperature: Divides the scores; 0.05 is the usual scale of 20.
        normalize: Whether scores are cosines rather than dot products.
        item_counts: `[R]` how often each label is a positive; needs labels 0 … R − 1.
        item_gradient: `"balanced"` or `"paper"`; see `CrossBatchSoftmax`.
        symmetric: Whether the loss is the mean of both directions, as that of
            `MultipleNegativesSymmetricRankingLoss`.
        gather_across_devices: Whether the positives of all processes are negatives, with gradient.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        capacity: int = 4096,
        warmup_steps: int = 100,
        temperature: float = 0.05,
        normalize: bool = True,
        item_counts: Tensor | None = None,
        item_gradient: str = "balanced",
        symmetric: bool = False,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        dim = model.get_embedding_dimension()
        if dim is None:
            raise ValueError("the model does not say how long its vectors are: add a pooling layer")
        self.model = model
        self.normalize = normalize
        self.softmax = CrossBatchSoftmax(
            dim,
            capacity,
            warmup_steps,
            item_counts,
            temperature,
            item_gradient,
            symmetric=symmetric,
        )
        self.gather_across_devices = gather_across_devices

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch, as the trainer calls it.

        Args:
            sentence_features: Tokens of anchors, positives and optional columns of hard negatives.
            labels: `[B]` integer ids of the positives, if the data has them.
        """
        columns = list(sentence_features)
        if len(columns) < 2:
            raise ValueError(f"the loss needs columns anchor and positive, got {len(columns)}")
        vectors = [self._encode(column) for column in columns]  # each [B, d]
        by_text = labels is None or labels.is_floating_point()
        if by_text and self.softmax.frequency is not None:
            raise ValueError("item_counts needs an integer column label with the positives' ids")
        ids = text_ids(columns[1]) if by_text else labels
        if self.gather_across_devices and dist.is_initialized():  # once the trainer has begun
            self.softmax.process_group = dist.group.WORLD
        extra = None
        for column, vector in zip(columns[2:], vectors[2:], strict=True):
            more = Candidates(
                vector, text_ids(column), torch.zeros(len(vector), device=vector.device)
            )
            extra = more if extra is None else extra + more
        loss: Tensor = self.softmax(vectors[0], vectors[1], ids, extra_negatives=extra)
        return loss

    def stats(self) -> dict[str, float]:
        """Diagnostics of the last training batch."""
        return self.softmax.stats()

    def get_config_dict(self) -> dict[str, Any]:
        """Return the options for the model card."""
        return {
            "capacity": self.softmax.bank.capacity,
            "warmup_steps": self.softmax.warmup_steps,
            "temperature": self.softmax.temperature,
            "item_gradient": self.softmax.item_gradient,
            "symmetric": self.softmax.symmetric,
            "gather_across_devices": self.gather_across_devices,
            "normalize": self.normalize,
        }

    def _encode(self, features: dict[str, Tensor]) -> Tensor:
        vectors: Tensor = self.model(features)["sentence_embedding"]
        return nn.functional.normalize(vectors, dim=1) if self.normalize else vectors


def text_ids(features: dict[str, Tensor]) -> Tensor:
    """Return one integer per text: equal tokens give equal ids, independent of padding.

    Args:
        features: `input_ids` and `attention_mask`, `[B, L]`.

    Returns:
        `[B]` int64; different texts collide with a chance of about 2⁻⁶³ a pair.
    """
    tokens, mask = features["input_ids"], features["attention_mask"].bool()
    length = tokens.shape[1]
    # Multilinear hashing modulo 2⁶⁴: a fixed random odd factor for each position.
    generator = torch.Generator().manual_seed(SEED)
    factors = torch.randint(-(2**62), 2**62, (length,), generator=generator) * 2 + 1
    position = (mask.cumsum(dim=1) - 1).clamp(min=0)  # padding on either side does not count
    terms = (tokens.to(torch.int64) + 1) * factors.to(tokens.device)[position]
    return terms.masked_fill(~mask, 0).sum(dim=1)


class SaveBank(TrainerCallback):
    """Saves the loss's bank beside each checkpoint and restores it when training resumes.

    The trainer itself saves the model alone, so that a resumed training would begin with an empty
    bank.

    Args:
        loss: The loss that the trainer was given.
    """

    def __init__(self, loss: CrossBatchLoss) -> None:
        self.loss = loss

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the bank into the checkpoint that was just saved."""
        if state.is_world_process_zero:
            content = {k: v.contiguous() for k, v in self.loss.softmax.state_dict().items()}
            save_file(content, _checkpoint(args, state) / FILE)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Restore the bank if training resumes."""
        path = _checkpoint(args, state) / FILE
        if state.global_step and path.is_file():
            self.loss.softmax.load_state_dict(load_file(path))


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
