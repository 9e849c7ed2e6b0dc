"""Checkpoints: every tensor lands once in its place, and whatever does not fit is refused by name."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.models.checkpoint import fill_slots, load_decoder, load_model, weight_files
from specbench.types import ModelError
from tests.models.hf_folders import save_model, save_tokenizer

FILE = "model.safetensors"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return load_decoder(folder, dtype=dtype, device="cpu")


def edit(folder: Path, change: Any) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE, metadata={"format": "pt"})


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_loaded_decoder_gives_the_librarys_logits(tmp_path: Path, family: str, shard_size: str, tied: bool) -> None:
    biases = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    model = save_model(tmp_path, family, shard_size=shard_size, tie_word_embeddings=tied, **biases)
    assert (len(weight_files(tmp_path)) > 1) == (shard_size == "20KB")
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(load(tmp_path).forward(ids).logits, expected, rtol=0, atol=1e-5)


def test_weights_are_converted_to_the_dtype_asked_for(tmp_path: Path) -> None:
    save_model(tmp_path)
    stored = load_file(tmp_path / FILE)["model.embed_tokens.weight"]
    assert torch.equal(load(tmp_path, torch.bfloat16).embedding, stored.bfloat16())


def test_old_buffers_and_a_repeated_head_are_ignored(tmp_path: Path) -> None:
    save_model(tmp_path, tie_word_embeddings=True)

    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    before = load(tmp_path).forward(torch.tensor([[1, 2, 3]])).logits
    edit(tmp_path, change)
    assert torch.equal(load(tmp_path).forward(torch.tensor([[1, 2, 3]])).logits, before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), ["model.norm.weight", "none of 1 safetensors"]),
        (lambda t: t.update(extra=torch.ones(2)), [FILE, "extra", "not part of this architecture"]),
        (lambda t: t.update({"model.norm.weight": torch.ones(3)}), [FILE, "model.norm.weight", "[3]", "[32]"]),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}),
            ["model.norm.weight", "int8", "bfloat16"],
        ),
    ],
    ids=["missing", "unexpected", "shape", "type"],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: Any, words: list[str]) -> None:
    save_model(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(ModelError) as caught:
        load(tmp_path)
    assert all(word in str(caught.value) for word in words)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for path in (first, second):
        save_file({"x": torch.ones(2)}, path)
    with pytest.raises(ModelError, match=r"b\.safetensors: tensor x is also in a\.safetensors"):
        fill_slots({"x": torch.empty(2)}, [first, second])


@pytest.mark.parametrize("keep", [0, 4, 200, -100])
def test_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    save_model(tmp_path)
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged or incomplete"):
        load(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_model(tmp_path, shard_size="20KB")
    lost = weight_files(tmp_path)[1]
    lost.unlink()
    with pytest.raises(ModelError, match=f"lacks {lost.name}"):
        load(tmp_path)


def test_pytorch_weights_are_refused_with_the_way_out(tmp_path: Path) -> None:
    save_model(tmp_path)
    (tmp_path / FILE).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="convert them to safetensors"):
        load(tmp_path)


def test_broken_index_is_named(tmp_path: Path) -> None:
    save_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}}))
    with pytest.raises(ModelError, match=r"index\.json: no weight_map"):
        load(tmp_path)


def test_load_model_brings_tokenizer_stops_and_revision(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    save_model(folder, vocab_size=300, eos_token_id=[1, 7])
    bare = load_model(str(folder), dtype=torch.float32, device="cpu", cache_dir=tmp_path)
    assert (bare.chat, bare.stop_ids, bare.name) == (None, frozenset(), "tiny")
    save_tokenizer(folder, template="{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
    loaded = load_model(str(folder), dtype=torch.float32, device="cpu", cache_dir=tmp_path)
    assert loaded.stop_ids == {1, 3, 7}
    assert loaded.revision.startswith("local-")
    assert loaded.revision != bare.revision  # the tokenizer is part of what a model is


def test_revision_changes_with_one_weight(tmp_path: Path) -> None:
    save_model(tmp_path / "m")
    before = load_model(str(tmp_path / "m"), dtype=torch.float32, device="cpu", cache_dir=tmp_path).revision
    edit(tmp_path / "m", lambda t: t["model.norm.weight"].add_(1))
    after = load_model(str(tmp_path / "m"), dtype=torch.float32, device="cpu", cache_dir=tmp_path).revision
    assert before != after


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    pytest.skip("this system does not tell anonymous memory apart")


def test_weights_are_never_held_twice(tmp_path: Path) -> None:
    sizes = [(4096, 4096)] * 3  # 192 MB of float32, read into bfloat16
    save_file({str(i): torch.zeros(size) for i, size in enumerate(sizes)}, tmp_path / FILE)
    slots = {str(i): torch.ones(size, dtype=torch.bfloat16) for i, size in enumerate(sizes)}
    gc.collect()
    start, peak, done = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    fill_slots(slots, [tmp_path / FILE])
    done.set()
    watcher.join()
    assert peak[0] - start < 40 * 2**20  # one tensor alone is 64 MB in the file
