"""The outside references get the attention that their config names."""

from __future__ import annotations

import pytest
import torch

from specbench.decoding.target import Target
from specbench.methods.build import Parts, build_generator
from specbench.models.checkpoint import load_decoder
from specbench.types import Sampling
from tests.composed import composed
from tests.models.hf_folders import save_model


@pytest.mark.parametrize("method", ["hf_ar", "hf_assisted"])
def test_the_attention_is_the_one_that_was_chosen(tmp_path, method):
    save_model(tmp_path)
    decoder = load_decoder(tmp_path, dtype=torch.float32, device="cpu")
    for chosen in ("sdpa", "eager"):
        config = composed("model=tiny", f"method={method}", f"method.attn_implementation={chosen}").method
        parts = Parts(Target(decoder), Sampling(), draft=decoder, folder=tmp_path, draft_folder=tmp_path)
        built = build_generator(config, parts)
        models = [built.model, built.draft] if method == "hf_assisted" else [built.model]
        assert [model.config._attn_implementation for model in models] == [chosen] * len(models)
