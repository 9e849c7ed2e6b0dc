"""Our rotary frequencies are those of the library, for every supported kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specbench.models.rope import inverse_frequencies
from specbench.models.spec import spec_from_config
from tests.models.hf_folders import hf_config

YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": YARN,
    "yarn with mscale": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn with attention factor": YARN | {"attention_factor": 1.3, "beta_fast": 16, "beta_slow": 2},
    "yarn without rounding": YARN | {"truncate": False},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("theta", "head_dim"), [(10_000.0, 64), (500_000.0, 128), (1_000_000.0, 80)])
def test_frequencies_equal_the_librarys(kind: str, theta: float, head_dim: int) -> None:
    config: Any = hf_config(
        "llama",
        hidden_size=head_dim * 4,
        head_dim=head_dim,
        max_position_embeddings=16384,
        rope_parameters=KINDS[kind] | {"rope_theta": theta},
    )
    library = LlamaRotaryEmbedding(config)
    spec = spec_from_config(config.to_dict())
    frequencies, scaling = inverse_frequencies(spec.rope, spec.head_dim, spec.max_positions)
    torch.testing.assert_close(frequencies, library.inv_freq, rtol=2e-6, atol=0)
    assert scaling == pytest.approx(library.attention_scaling, rel=1e-9)
    assert frequencies.dtype == torch.float32
