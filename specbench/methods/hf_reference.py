"""Outside references hf_ar, hf_assisted and hf_pld: the transformers library decodes, with its own defaults."""

from __future__ import annotations

from typing import Any

from specbench.methods.build import Parts
from specbench.models.draft import library_folder
from specbench.models.hf_generate import HfGenerator, load_hf
from specbench.types import ModelError

_MODES = {"hf_ar": "ar", "hf_assisted": "assisted", "hf_pld": "pld"}
_SETTINGS = ("num_assistant_tokens", "schedule", "assistant_confidence_threshold", "max_ngram", "num_draft_tokens")


class HfReference(HfGenerator):
    """A generator without steps around the library's own model of the same folder."""

    @classmethod
    def build(cls, config: Any, parts: Parts) -> HfReference:
        """Load target (and draft, only for hf_assisted) through transformers; raises ModelError."""
        if parts.folder is None:
            raise ModelError(f"method={config.name} loads the model through transformers and needs its folder")
        load: dict[str, Any] = {
            "dtype": parts.dtype,
            "device": parts.device,
            "attn_implementation": config.attn_implementation,
        }
        draft = None
        if config.name == "hf_assisted":
            parts.require_draft()
            assert parts.draft_folder is not None
            with library_folder(parts.draft_folder, parts.folder) as folder:
                draft = load_hf(folder, **load)
        settings = {name: getattr(config, name) for name in _SETTINGS if hasattr(config, name)}
        model = load_hf(parts.folder, **load)
        return cls(model, mode=_MODES[config.name], sampling=parts.sampling, draft=draft, settings=settings)
