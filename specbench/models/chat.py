"""Chat templates, tokens and stop ids: the tokenizer's own rules, applied the same way for every method."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specbench.models.spec import read_json
from specbench.types import ModelError

Message = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")  # two names of one class, which reads tokenizer.json
_MARK = "specbench-answer"
_DATE_CODES = "aAbBcdHIjmMpSUwWxXyY"
_NO_DATE = datetime.date(2024, 7, 26)  # only for looking at the shape of a template


@dataclass(frozen=True)
class Chat:
    """A tokenizer with its chat template; `template_options` are extra variables of the template."""

    tokenizer: PreTrainedTokenizerBase
    name: str
    stop_ids: frozenset[int] = frozenset()
    template_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_template(self) -> bool:
        return bool(self.tokenizer.chat_template)

    def render(self, messages: Sequence[Message], *, date: datetime.date) -> str:
        """The prompt text up to where the assistant answers; every date in it is `date`; raises ModelError."""
        return self._render(messages, date, add_generation_prompt=True)

    def transcript(self, messages: Sequence[Message], *, date: datetime.date) -> str:
        """The text of a conversation whose last answer is finished; raises ModelError."""
        return self._render(messages, date, add_generation_prompt=False)

    def encode_chat(self, messages: Sequence[Message], *, date: datetime.date) -> list[int]:
        """Token ids of the rendered conversation, with one BOS at the start where the tokenizer wants one."""
        return self.encode_rendered(self.render(messages, date=date))

    def encode_rendered(self, rendered: str) -> list[int]:
        """Token ids of a rendered conversation: never two BOS in front, one if plain text would get one."""
        ids = list(self.tokenizer.encode(rendered, add_special_tokens=False))
        bos = self.tokenizer.bos_token_id
        while len(ids) > 1 and ids[0] == ids[1] == bos:
            ids = ids[1:]
        if self._adds_bos() and ids[:1] != [bos]:
            ids = [bos, *ids]
        return ids

    def encode_raw(self, text: str) -> list[int]:
        """Token ids of plain text, with the special tokens that the tokenizer itself adds."""
        return list(self.tokenizer.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer without special tokens; white space stays as the model wrote it."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def only_turn(self, ids: Sequence[int], *, date: datetime.date) -> str:
        """The user turn of a one-turn conversation from its token ids: what `encode_chat` was given."""
        before, after = self.turn_frame(date=date)
        text = str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return text.partition(before)[2].removesuffix(after)

    def turn_frame(self, *, date: datetime.date) -> tuple[str, str]:
        """What the template writes before and after the user turn of a one-turn conversation."""
        before, _, after = self.render([{"role": "user", "content": _MARK}], date=date).partition(_MARK)
        return before, after

    def _adds_bos(self) -> bool:
        bos = self.tokenizer.bos_token_id
        return bos is not None and list(self.tokenizer.encode("a"))[:1] == [bos]

    def _render(self, messages: Sequence[Message], date: datetime.date, *, add_generation_prompt: bool) -> str:
        if not self.has_template:
            raise ModelError(f"{self.name} has no chat template; where a task allows it, set task.style=completion")
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    date_string=date.strftime("%d %b %Y"),
                    chat_template=_with_fixed_clock(self.tokenizer.get_chat_template(), date),
                    **self.template_options,
                )
            )
        except Exception as error:  # templates are programs: they raise what their authors chose
            raise ModelError(f"the chat template of {self.name} failed: {error}") from error


def load_chat(
    folder: Path,
    name: str,
    template_options: Mapping[str, Any] | None = None,
    *,
    chat_template: str | None = None,
) -> Chat | None:
    """The tokenizer of a model folder, None where the folder holds none; raises ModelError where it is broken.

    `chat_template` is used where the tokenizer brings none.
    """
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        return None
    try:
        tokenizer = _read_tokenizer(folder)
    except Exception as error:  # json, tokenizers and transformers each have their own
        raise ModelError(f"cannot read the tokenizer in {folder}: {error}") from error
    tokenizer.chat_template = tokenizer.chat_template or chat_template
    chat = Chat(tokenizer, name, template_options=dict(template_options or {}))
    return Chat(tokenizer, name, find_stop_ids(chat, folder), chat.template_options)


def _read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """What the library would choose for the folder.

    Choosing costs seconds of imports. Where the folder of a Llama names the generic class, there is nothing to choose;
    elsewhere the library may know better than the folder.
    """
    files = [folder / name for name in ("tokenizer_config.json", "config.json")]
    if (folder / "tokenizer.json").is_file() and all(file.is_file() for file in files):
        chosen, model = (read_json(file) for file in files)
        generic = chosen.get("tokenizer_class") in _GENERIC and "auto_map" not in chosen
        if generic and model.get("model_type") in ("llama", "llama_mla"):
            found: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
            return found
    from transformers import AutoTokenizer

    # A converted folder brings code for its model, not for its tokenizer: without an answer the library asks at stdin.
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def find_stop_ids(chat: Chat, folder: Path) -> frozenset[int]:
    """Every id that ends an answer: generation config (else config), tokenizer, and the template's end of turn."""
    configs = [folder / "generation_config.json", folder / "config.json"]
    named = next((read_json(path) for path in configs if path.is_file()), {}).get("eos_token_id")
    found = set(named if isinstance(named, list) else [named])
    found |= {chat.tokenizer.eos_token_id, _end_of_turn(chat)}
    return frozenset(int(token_id) for token_id in found if token_id is not None)


def prompt_sha256(rendered: str) -> str:
    """The sha256 of a rendered prompt, kept in every row so that two runs can be seen to have asked the same."""
    return hashlib.sha256(rendered.encode()).hexdigest()


def check_pair(target: Chat, draft: Chat) -> None:
    """Raise ModelError unless equal ids mean equal tokens, over the ids that both have and neither calls special."""
    shared = range(min(len(target.tokenizer), len(draft.tokenizer)))
    special = _special_ids(target.tokenizer) | _special_ids(draft.tokenizer)
    pairs = zip(
        shared,
        target.tokenizer.convert_ids_to_tokens(list(shared)),
        draft.tokenizer.convert_ids_to_tokens(list(shared)),
        strict=True,
    )
    for token_id, ours, theirs in pairs:
        if ours != theirs and token_id not in special:
            raise ModelError(
                f"{target.name} and {draft.name} do not pair: id {token_id} is {ours!r} in the target and "
                f"{theirs!r} in the draft; a draft must share the target's vocabulary"
            )


def _with_fixed_clock(template: str, date: datetime.date) -> str:
    """Put a macro before the template that hides the library's `strftime_now`, whose clock is today's."""
    if "strftime_now" not in template:
        return template
    values = {f"%{code}": date.strftime(f"%{code}") for code in _DATE_CODES} | {
        "%-d": str(date.day),
        "%-m": str(date.month),
    }
    replaced = "".join(f"|replace({code!r}, {value!r})" for code, value in values.items())
    return "{%- macro strftime_now(format) -%}{{- format" + replaced + " -}}{%- endmacro +%}" + template


def _end_of_turn(chat: Chat) -> int | None:
    """The first special token that the template writes after an assistant's message, None without one."""
    if not chat.has_template:
        return None
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _MARK}]
    try:
        text = chat._render(messages, _NO_DATE, add_generation_prompt=False)
    except ModelError:
        return None  # a template that cannot show a finished answer tells nothing about its end
    after = chat.tokenizer.encode(text.rpartition(_MARK)[2], add_special_tokens=False)
    special = _special_ids(chat.tokenizer)
    return next((token_id for token_id in after if token_id in special), None)


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    added = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids)
