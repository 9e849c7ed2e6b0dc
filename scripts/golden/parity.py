"""Every recorded plain decoding (`ar_ids`), whatever method its file is about, against our loop with empty drafts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from specbench.types import Generation, Generator

from .official import decoder
from .outcome import Data, Outcome, equal, judge


def check_plain_decoding(root: Path, data: Data) -> Iterator[Outcome]:
    """One outcome for every prompt of the file that has `ar_ids`."""
    for case in data.get("cases", []):
        for number, prompt in enumerate(case.get("prompts") or [case]):
            if "ar_ids" in prompt:
                name = f"{case['id']} prompt {number} plain decoding"
                yield judge(name, _prompt, root, case, prompt)


def _prompt(root: Path, case: Data, prompt: Data) -> Iterator[str]:
    eos, golden = case.get("eos_id"), list(prompt["ar_ids"])
    # Official loops may overshoot their budget; with an end token the answer ends there, which some leave out.
    budget = len(golden) if eos is None else max(len(golden), int(case["max_new_tokens"]))
    answer = decode(root / (case.get("model") or case["target_model"]), prompt["prompt_ids"], budget, eos)
    ours = list(answer.tokens)
    yield from equal("ids", _before(ours, eos), _before(golden, eos))
    if eos is not None and len(_before(golden, eos)) < budget:
        yield from equal("finish reason", answer.finish_reason, "stop")
    if "ar_ids_cut_after_first_eos" in prompt:
        yield from equal("ids with the end token", ours, prompt["ar_ids_cut_after_first_eos"])


def _before(ids: Sequence[int], eos: int | None) -> list[int]:
    return list(itertools.takewhile(lambda token: token != eos, ids))


def decode(model_dir: Path, prompt: Sequence[int], budget: int, eos: int | None) -> Generation:
    """Greedy plain decoding in float32 through our own loop."""
    stop_ids = () if eos is None else (eos,)
    return _generator(model_dir.resolve()).generate(prompt, max_new_tokens=budget, seed=0, stop_ids=stop_ids)


@functools.cache
def _generator(model_dir: Path) -> Generator:
    from specbench.decoding.loop import SpeculativeDecoding
    from specbench.decoding.target import Target
    from specbench.methods.ar import Autoregressive

    return SpeculativeDecoding(Target(decoder(model_dir)), Autoregressive())
