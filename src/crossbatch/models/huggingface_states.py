"""`HuggingFace`: the states of a Hugging Face encoder on disk, partly frozen if asked.

states = HuggingFace("models/minilm", frozen_layers=4)(tokens, mask)      # [n, L, dim]

Only `config.json` and safetensors are read, from the disk alone; no code of a folder is ever run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .features import FeatureTable

# Entries of a config that could name code, or kernels to download; a nested config has them too.
UNSAFE = ("auto_map", "quantization_config", "custom_pipelines")
NO_CONFIG: Mapping[str, Any] = {}
EXTRA_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet"}  # which count from 2


class HuggingFace(nn.Module):
    """An encoder of the library transformers, by its folder or by its config alone.

    Args:
        folder: Where `config.json` and `model.safetensors` are.
        config: Content of `config.json`, where the folder's own is not to be read.
        frozen_layers: The token embeddings and so many layers keep their weights; −1 for all.
        checkpointing: Whether the backward pass computes layers again instead of keeping states.
        pretrained: Whether to read the folder's weights; others are loaded later if not.

    Attributes:
        dim: Width of the states.
        max_tokens: Tokens of a text that the encoder takes; None for any number.
    """

    def __init__(
        self,
        folder: str,
        config: Mapping[str, Any] = NO_CONFIG,
        *,
        frozen_layers: int = 0,
        checkpointing: bool = False,
        pretrained: bool = True,
    ) -> None:
        super().__init__()
        library = _transformers()
        described = _config(library, config or read_config(folder))
        if pretrained:
            self.model: Any = _pretrained(library, folder, described)
        else:
            self.model = library.AutoModel.from_config(described, trust_remote_code=False)
        self.train()  # as any new module; the library gives it in evaluation mode
        self.dim = int(described.hidden_size)
        self.num_tokens = int(described.vocab_size)
        positions = getattr(described, "max_position_embeddings", None)
        self.max_tokens: int | None = int(positions) if positions and positions > 0 else None
        if self.max_tokens and described.model_type in EXTRA_POSITIONS:
            self.max_tokens -= 2
        if checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self._freeze(frozen_layers)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """States `[n, L, dim]` of token ids `[n, L]`, of which those in `mask` are real."""
        found = self.model(input_ids=tokens, attention_mask=mask.long())
        states: Tensor = found.last_hidden_state
        return states

    def check_tokens(self, name: str, table: FeatureTable) -> None:
        """Raise `ValueError` if the tokens of a feature cannot be those of this encoder."""
        if table.num_values > self.num_tokens:
            raise ValueError(
                f"feature {name!r} has token ids up to {table.num_values - 1}, but the encoder "
                f"knows {self.num_tokens}: prepare the dataset with the encoder's own tokenizer, "
                "--tokenizer FOLDER"
            )
        longest = int(table.offsets.diff().max()) if table.offsets is not None else 0
        if self.max_tokens is not None and longest > self.max_tokens:
            raise ValueError(
                f"feature {name!r} has texts of {longest} tokens, but the encoder takes "
                f"{self.max_tokens}: prepare the dataset with --max-tokens {self.max_tokens}"
            )

    def _freeze(self, layers: int) -> None:
        if layers == 0:
            return
        if layers == -1:
            self.requires_grad_(requires_grad=False)
            return
        lists = {n: m for n, m in self.model.named_modules() if isinstance(m, nn.ModuleList)}
        name = max(lists, key=lambda each: len(lists[each]), default="")
        if not 0 < layers <= len(lists.get(name, ())):
            raise ValueError(
                f"frozen_layers must be 0 to {len(lists.get(name, ()))}, the encoder's layers, or "
                f"-1 for the whole encoder, got {layers}"
            )
        inside = False
        for each, parameter in self.model.named_parameters():
            inside = inside or each.startswith(f"{name}.")
            if inside:
                number = each.removeprefix(f"{name}.").partition(".")[0]
                if not each.startswith(f"{name}.") or int(number) >= layers:
                    continue
            parameter.requires_grad = False


def read_config(folder: str) -> dict[str, Any]:
    """The content of an encoder's `config.json`.

    Raises:
        ValueError: If there is none.
    """
    path = Path(folder) / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
            raise ValueError("it names no model_type")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"item.model must be the folder of a Hugging Face encoder on disk, got {folder!r}, "
            f"whose config.json cannot be read ({error})"
        ) from None
    return content


def _safe(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in config.items():
        if key.startswith("_") or key.endswith("_implementation") or key in UNSAFE:
            continue
        found[key] = _safe(value) if isinstance(value, Mapping) else value
    return found


def _config(library: Any, content: Mapping[str, Any]) -> Any:
    options = _safe(content)
    kind = options.pop("model_type", "")
    try:
        described = library.AutoConfig.for_model(kind, **options)
    except Exception as error:  # of many kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(f"the encoder's config cannot be used: {reason}") from None
    if getattr(described, "is_encoder_decoder", False) or not hasattr(described, "hidden_size"):
        raise ValueError(f"the encoder is a {kind} model, which is no encoder of text")
    return described


def _pretrained(library: Any, folder: str, config: Any) -> nn.Module:
    bars = library.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    level = bars.get_verbosity()
    bars.set_verbosity_error()
    try:
        model, found = library.AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # of many kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(f"the encoder in {folder!r} cannot be read: {reason}") from None
    finally:
        bars.set_verbosity(level)
        if shown:
            bars.enable_progress_bar()
    missing = [name for name in found["missing_keys"] if "pooler" not in name]
    if missing:
        raise ValueError(f"the encoder in {folder!r} lacks weights: {', '.join(missing[:3])}")
    module: nn.Module = model
    return module


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ValueError("a huggingface tower needs: pip install 'crossbatch[text]'") from error
    return transformers
