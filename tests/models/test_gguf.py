"""GGUF conversion: the weights of the library's reading, whole folders only, and clear refusals."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from specbench.models.checkpoint import load_decoder, load_model
from specbench.models.prepare import prepare_embedded, prepare_gguf
from specbench.types import ModelError
from tests.models.hf_folders import save_model

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
TEMPLATE = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"


def gguf_name(name: str) -> str:
    name = name.replace("model.layers.", "blk.")
    for ours, theirs in sorted(NAMES.items(), key=lambda pair: -len(pair[0])):
        name = name.replace(ours, theirs)
    return name


def interleaved(weights: np.ndarray, head_dim: int) -> np.ndarray:
    """As llama.cpp stores q and k of Llama: numbers that turn together lie side by side."""
    halves = weights.reshape(-1, 2, head_dim // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape).copy()


def write_gguf(path: Path, model: Any, family: str = "llama", **extra: str) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, family)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(extra.pop("split", "smollm"))
    words = ["</s>", "<|end|>", "Ġ", "1", "2", "ĠĠ", *(f"w{i}" for i in range(config.vocab_size - 6))]
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(words) - 2))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for key, value in extra.items():
        writer.add_string(f"{family}.{key}", value)
    for name, weights in model.state_dict().items():
        array = weights.numpy()
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            array = interleaved(array, config.head_dim)
        if not (name == "lm_head.weight" and config.tie_word_embeddings):
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Path, Any]:
    model = save_model(tmp_path / "model", tie_word_embeddings=True)
    write_gguf(tmp_path / "tiny.gguf", model)
    return tmp_path / "tiny.gguf", model


@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama", {}), ("llama", {"tie_word_embeddings": True}), ("qwen3", {}), ("qwen3", {"head_dim": 8})],
)
def test_converted_model_gives_the_original_logits(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    model = save_model(tmp_path / "model", family, **changes)
    write_gguf(tmp_path / "tiny.gguf", model, family)
    decoder = load_decoder(prepare_gguf(tmp_path / "tiny.gguf", tmp_path), dtype=torch.float32, device="cpu")
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(decoder.forward(ids).logits, model(ids).logits, rtol=0, atol=1e-5)


def test_source_is_loaded_with_tokenizer_and_stops(tiny: tuple[Path, Any], tmp_path: Path) -> None:
    loaded = load_model(str(tiny[0]), dtype=torch.float32, device="cpu", cache_dir=tmp_path / "cache")
    assert loaded.name == "tiny (from GGUF)"
    assert loaded.revision.startswith("gguf-")
    assert loaded.stop_ids == {0, 1}
    assert loaded.chat is not None
    assert loaded.chat.tokenizer.convert_ids_to_tokens(loaded.chat.encode_raw("  12")) == ["ĠĠ", "1", "2"]


def test_second_time_converts_nothing(tiny: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare_gguf(tiny[0], tmp_path)
    monkeypatch.setitem(sys.modules, "specbench.models.gguf", None)  # importing it would now fail
    assert prepare_gguf(tiny[0], tmp_path) == folder


@pytest.mark.parametrize("keep", [0, 100, 3000, -2000])
def test_truncated_file_is_refused_and_leaves_nothing(tiny: tuple[Path, Any], tmp_path: Path, keep: int) -> None:
    content = tiny[0].read_bytes()
    tiny[0].write_bytes(content[:keep])
    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        prepare_gguf(tiny[0], tmp_path / "cache")
    assert not list((tmp_path / "cache" / "models").glob("*/config.json"))


def test_what_reading_would_lose_is_refused(tiny: tuple[Path, Any], tmp_path: Path) -> None:
    path, model = tiny
    write_gguf(path, model, **{"rope.scaling.type": "yarn"})
    with pytest.raises(ModelError, match="RoPE scaling"):
        prepare_gguf(path, tmp_path)
    write_gguf(path, model, split="deepseek-coder")
    with pytest.raises(ModelError, match="deepseek-coder"):
        prepare_gguf(path, tmp_path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf does not exist"):
        prepare_gguf(tmp_path / "none.gguf", tmp_path)


KILLED = """
import sys, time
from pathlib import Path
import specbench.models.gguf as conversion
from specbench.models.prepare import prepare_gguf
finish = conversion._write_weights
def slow(*arguments):
    finish(*arguments)
    print("written", flush=True)
    time.sleep(60)
conversion._write_weights = slow
prepare_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_killed_conversion_leaves_nothing_half_made(tiny: tuple[Path, Any], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tiny[0]), str(cache)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.send_signal(signal.SIGKILL)
    left = [path.name for path in (cache / "models").iterdir() if path.is_dir()]
    assert [name.endswith(".partial") for name in left] == [True]
    started = time.monotonic()
    folder = prepare_gguf(tiny[0], cache)
    assert time.monotonic() - started < 30  # the dead owner's lock does not block
    assert [path.name for path in (cache / "models").iterdir() if path.is_dir()] == [folder.name]
    load_decoder(folder, dtype=torch.float32, device="cpu")


def test_embedded_model_answers() -> None:
    cache = Path(os.environ.get("SPECBENCH_CACHE", "~/.cache/specbench")).expanduser()
    if not list(cache.glob("models/SmolLM2-*/config.json")):
        pytest.skip("the embedded model is not prepared: run scripts/prepare_model.py")
    folder = prepare_embedded(cache)
    loaded = load_model("embedded:smollm2", dtype=torch.float32, device="cpu", cache_dir=cache)
    assert (loaded.folder, loaded.name) == (folder, "SmolLM2-135M-Instruct (from Q4_1)")
    assert loaded.stop_ids == {2}
    assert loaded.chat is not None
    # What the published tokenizer does: each digit alone, spaces before a digit kept together.
    assert loaded.chat.tokenizer.convert_ids_to_tokens(loaded.chat.encode_raw("a   42")) == ["a", "ĠĠĠ", "4", "2"]
    messages = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    ids = loaded.chat.encode_chat(messages, date=datetime.date(2024, 7, 26))
    assert (ids[0], ids.count(1)) == (1, 3)
    with torch.no_grad():
        next_id = int(loaded.decoder.forward(torch.tensor([ids]), logits="last").logits[0, -1].argmax())
    assert loaded.chat.decode([next_id]) in ("Paris", "The")
