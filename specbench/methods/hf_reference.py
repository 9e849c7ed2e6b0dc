"""Outside references hf_ar, hf_assisted and hf_pld: the transformers library decodes, with its own defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specbench.models.hf_generate import HfGenerator, Mode, load_hf
from specbench.types import ModelError, Sampling


class HfReference(HfGenerator):
    """A generator without steps around the library's own model of the same folder."""

    @classmethod
    def build(
        cls,
        folder: Path,
        *,
        mode: Mode,
        sampling: Sampling,
        dtype: torch.dtype,
        device: torch.device | str,
        draft_folder: Path | None = None,
        attn_implementation: str = "sdpa",
    ) -> HfReference:
        """Load target (and draft, only for mode `assisted`) through transformers; raises ModelError."""
        if mode == "assisted" and draft_folder is None:
            raise ModelError("method=hf_assisted needs a draft model: set model.draft")
        load: dict[str, Any] = {"dtype": dtype, "device": device, "attn_implementation": attn_implementation}
        draft = load_hf(draft_folder, **load) if mode == "assisted" and draft_folder else None
        return cls(load_hf(folder, **load), mode=mode, sampling=sampling, draft=draft)
