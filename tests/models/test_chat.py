"""Templates, BOS, dates, stop ids and pairing of tokenizers."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from specbench.models.chat import Chat, check_pair, load_chat, prompt_sha256
from specbench.types import ModelError
from tests.models.hf_folders import CONFIGS, hf_config, save_tokenizer

DATE = datetime.date(2024, 3, 5)
USER = [{"role": "user", "content": "ab"}]
PLAIN = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"
WITH_BOS = "{{ bos_token }}" + PLAIN
BOS, EOS, USER_ID, END = range(4)


def chat_of(folder: Path, config: dict[str, Any] | None = None, **options: Any) -> Chat:
    save_tokenizer(folder, **options)
    (folder / "generation_config.json").write_text(json.dumps(config or {}))
    chat = load_chat(folder, "tiny")
    assert chat is not None
    return chat


@pytest.mark.parametrize(
    ("template", "add_bos", "num_bos"),
    [
        (PLAIN, False, 0),  # Qwen: no BOS anywhere
        (PLAIN, True, 1),  # the tokenizer wants one, the template forgot it
        (WITH_BOS, True, 1),  # Llama: both would write it
        (WITH_BOS, False, 1),  # only the template does
        ("{{ bos_token }}" + WITH_BOS, True, 1),
    ],
)
def test_bos_at_the_start(tmp_path: Path, template: str, add_bos: bool, num_bos: int) -> None:
    ids = chat_of(tmp_path, template=template, add_bos=add_bos).encode_chat(USER, date=DATE)
    assert ids[: num_bos + 1] == [BOS] * num_bos + [USER_ID]
    assert ids.count(BOS) == num_bos


def test_bos_that_opens_every_message_stays(tmp_path: Path) -> None:
    template = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"
    ids = chat_of(tmp_path, template=template).encode_chat(USER * 2, date=DATE)
    assert ids.count(BOS) == 2
    assert ids[0] == BOS


def test_raw_text_gets_what_the_tokenizer_adds(tmp_path: Path) -> None:
    with_bos = chat_of(tmp_path / "a", add_bos=True).encode_raw("abc")
    without = chat_of(tmp_path / "b").encode_raw("abc")
    assert with_bos == [BOS, *without]
    assert len(without) == 1


def test_decode_drops_special_tokens_and_keeps_white_space(tmp_path: Path) -> None:
    chat = chat_of(tmp_path)
    assert chat.decode([BOS, *chat.encode_raw("  abc \n"), END, EOS]) == "  abc \n"


@pytest.mark.parametrize(
    "template",
    [
        "{{ date_string }}|{{ messages[0].content }}",
        "{{ strftime_now('%d %b %Y') }}|{{ messages[0].content }}",
        "{% if not date_string is defined %}{% set date_string = strftime_now('%Y') %}{% endif %}{{ date_string }}|ab",
    ],
)
def test_every_date_is_the_fixed_one(tmp_path: Path, template: str) -> None:
    rendered = chat_of(tmp_path, template=template).render(USER, date=DATE)
    assert rendered == "05 Mar 2024|ab"
    assert prompt_sha256(rendered) != prompt_sha256(rendered + " ")


def test_date_parts_can_be_asked_for_in_any_form(tmp_path: Path) -> None:
    template = "\n {{ strftime_now('%A, %-d. %B %y') }}{% set now = strftime_now %}{{ now('/%m') }}"
    assert chat_of(tmp_path, template=template).render(USER, date=DATE) == "\n Tuesday, 5. March 24/03"


def test_template_options_reach_the_template(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, template="{{ 'think' if enable_thinking else 'answer' }}")
    chat = load_chat(tmp_path, "tiny", {"enable_thinking": False})
    assert chat is not None
    assert chat.render(USER, date=DATE) == "answer"


@pytest.mark.parametrize(
    ("config", "template", "expected"),
    [
        ({"eos_token_id": 40}, None, {EOS, 40}),
        ({"eos_token_id": [40, 41]}, PLAIN, {EOS, END, 40, 41}),
        ({}, "{% for m in messages %}<|user|>{{ m.content }}\n{% endfor %}", {EOS}),
        ({}, "{% for m in messages %}{{ m.content }}\n<|end|></s>{% endfor %}", {EOS, END}),
        ({}, "{{ raise_exception('no assistant here') }}", {EOS}),
    ],
)
def test_stop_ids_are_the_union(
    tmp_path: Path, config: dict[str, Any], template: str | None, expected: set[int]
) -> None:
    assert chat_of(tmp_path, config, template=template).stop_ids == expected


def test_without_a_template_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tiny has no chat template.*task\.style=completion"):
        chat_of(tmp_path).render(USER, date=DATE)


def test_a_failing_template_is_one_clear_error(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ModelError, match="tiny failed: roles must alternate"):
        chat.render(USER, date=DATE)


def test_broken_tokenizer_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot read the tokenizer"):
        load_chat(tmp_path, "tiny")


def test_pairs_share_their_tokens_except_special_ones(tmp_path: Path) -> None:
    target = chat_of(tmp_path / "target")
    check_pair(target, chat_of(tmp_path / "renamed", pad_token="<|end|>"))
    check_pair(target, chat_of(tmp_path / "same", template=PLAIN))
    with pytest.raises(ModelError, match="id 260 is 'ab' in the target and 'ca' in the draft"):
        check_pair(target, chat_of(tmp_path / "other", alphabet="cab"))


PROBES = ("ab abc  cab\n\tabc", "<|user|>abc<|end|></s>", "Ümläut 東京 🙂 \u00a0", "", " leading", "12 345")


def same_tokenizer(folder: Path) -> Chat:
    """The chat of a folder, whose tokenizer must do what the library's own choice does."""
    chat, theirs = load_chat(folder, "tiny"), AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert chat is not None
    ours = chat.tokenizer
    for text in PROBES:
        assert ours.encode(text) == theirs.encode(text)
        plain = ours.encode(text, add_special_tokens=False)
        assert plain == theirs.encode(text, add_special_tokens=False)
        assert chat.decode(plain) == theirs.decode(plain, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "chat_template", "all_special_ids", "added_tokens_decoder")
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    assert len(ours) == len(theirs)
    if ours.chat_template:
        ids = theirs.apply_chat_template(USER * 3, add_generation_prompt=True, tokenize=False)
        assert chat.render(USER * 3, date=DATE) == ids
    return chat


@pytest.mark.parametrize("family", sorted(CONFIGS))
@pytest.mark.parametrize("template", [None, PLAIN, WITH_BOS])
@pytest.mark.parametrize("add_bos", [False, True])
def test_the_tokenizer_is_the_librarys_choice(tmp_path: Path, family: str, template: str | None, add_bos: bool) -> None:
    hf_config(family).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, template=template, add_bos=add_bos)
    same_tokenizer(tmp_path)


def test_the_embedded_tokenizer_is_the_librarys_choice_where_it_is_prepared() -> None:
    cache = Path(os.environ.get("SPECBENCH_CACHE", "~/.cache/specbench")).expanduser()
    folders = [path.parent for path in cache.glob("models/SmolLM2*/tokenizer.json")]
    if not folders:
        pytest.skip("the embedded model is not prepared here")
    assert len(same_tokenizer(folders[0]).tokenizer) == 49152


def test_a_class_of_its_own_is_left_to_the_library(tmp_path: Path) -> None:
    hf_config("llama").save_pretrained(tmp_path)
    save_tokenizer(tmp_path, template=PLAIN)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}))
    assert type(same_tokenizer(tmp_path).tokenizer).__name__ == "GPT2Tokenizer"
