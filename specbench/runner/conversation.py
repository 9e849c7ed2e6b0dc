"""One conversation, decoded by AR and by the method side by side, turn after turn."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.analysis.exactness import first_divergence
from specbench.decoding.teacher import logit_gap, teacher_agreement
from specbench.hardware.lock import exclusive
from specbench.hardware.monitor import PeakMemory, load_now
from specbench.recording import Answer, Turn, sample_seed
from specbench.results.schema import BASELINE, METHOD
from specbench.runner.session import Session
from specbench.runner.stored import StoredBaseline
from specbench.types import Generation, Generator, Sample, SampleError

log = logging.getLogger(__name__)

MAX_DRIFT = 0.1  # a pair during which the machine's speed changed by more is measured again
_MIN_CONTEXT_LEFT = 16  # a truncated prompt keeps at least this many tokens

Message = dict[str, str]


@dataclass
class Repetitions:
    """Which drifting pairs of a run are measured again: each up to `each` times, all together `share` of the pairs.

    Rounded up, so that one disturbance of a short run is always made good.
    """

    each: int
    share: float
    _pairs: int = 0
    _done: int = 0

    def begin_pair(self) -> None:
        self._pairs += 1

    def allowed(self, attempts: int) -> bool:
        """Whether a pair that was tried `attempts` times may be tried once more; what is allowed counts as done."""
        allowed = attempts <= self.each and self._done < math.ceil(self.share * self._pairs)
        self._done += allowed
        return allowed


class Conversation:
    """Measures one sample: every turn is a pair of answers, and the history is the same for both arms."""

    def __init__(
        self,
        session: Session,
        sample: Sample,
        *,
        index: int,
        max_new_tokens: int,
        repetitions: Repetitions,
        stored: StoredBaseline | None = None,
    ) -> None:
        self._session, self._sample, self._stored = session, sample, stored
        self._config = session.config
        self._index = index
        self._max_new_tokens = max_new_tokens
        self._repetitions = repetitions
        self._agreements: dict[tuple[int, ...], float] = {}
        self._earlier: list[dict[str, Answer]] = []  # what counts of the turns before this one
        self._paired = self._config.measure.baseline == "paired"
        self._arms = (METHOD,) if self._config.measure.baseline == "none" else (BASELINE, METHOD)

    def measure(self) -> list[Answer]:
        """All answers of all repeats; a turn that fails ends its repeat and is recorded as failed."""
        answers: list[Answer] = []
        for repeat in range(self._config.measure.repeats):
            answers += self._one_pass(repeat)
        return answers

    def _one_pass(self, repeat: int) -> list[Answer]:
        if self._config.method.scope == "sample":
            self._session.method.reset()
        own_history = self._config.task.history == "own" or BASELINE not in self._arms
        self._earlier = []
        histories: dict[str, list[Message]] = {arm: [] for arm in self._arms}
        answers: list[Answer] = []
        for number, question in enumerate(self._sample.turns):
            for history in histories.values():
                history.append({"role": "user", "content": question})
            turns = {arm: self._turn(number, repeat, history) for arm, history in histories.items()}
            pair = self._pair(turns)
            answers += pair
            used = {answer.arm: answer for answer in pair if answer.used}
            if any(answer.generation is None for answer in used.values()):
                break
            self._earlier.append(used)
            for arm, history in histories.items():
                source = arm if own_history else BASELINE
                history.append({"role": "assistant", "content": used[source].text or ""})
        return answers

    # ---- prompts

    def _turn(self, number: int, repeat: int, history: Sequence[Message]) -> Turn:
        tokens, text = self._session.encode(history, raw=self._sample.raw)
        room = self._session.model.spec.max_positions - self._max_new_tokens
        truncated = self._config.task.truncate and len(tokens) > room >= _MIN_CONTEXT_LEFT
        return Turn(
            sample=self._sample,
            number=number,
            repeat=repeat,
            tokens=_without_middle(tokens, room) if truncated else tokens,
            sha256=self._session.sha256(text),
            truncated=truncated,
            seed=sample_seed(self._config.seed, self._sample.id, number, repeat),
        )

    # ---- pairs

    def _pair(self, turns: dict[str, Turn]) -> list[Answer]:
        """All attempts at one turn: a pair whose AR speed drifted is repeated, the calmest attempt is used."""
        too_long = [self._too_long(arm, turn) for arm, turn in turns.items()]
        if any(too_long):
            return [answer for answer in too_long if answer is not None]
        timed = self._config.measure.exclusive
        self._repetitions.begin_pair()
        with exclusive(self._config.hardware.device, enabled=timed):
            attempts = [self._attempt(turns, 0)]
            while timed and self._repeatable and self._worth_repeating(attempts):
                self._learn_again()
                attempts.append(self._attempt(turns, len(attempts)))
        best = attempts[-1] if _failed(attempts[-1][1]) else min(attempts, key=lambda attempt: attempt[0])
        for attempt in attempts:
            for answer in attempt[1]:
                answer.used = attempt is best
            self._compare(attempt[1])
        return [answer for _, answers in attempts for answer in answers]

    def _learn_again(self) -> None:
        """Bring the method to where the turn began: taught by the turns before it, not by the answer just given."""
        self._session.method.reset()
        for used in self._earlier:
            self._generate(self._session.method, used[METHOD].turn, used[BASELINE].generation)

    def _attempt(self, turns: dict[str, Turn], attempt: int) -> tuple[float, list[Answer]]:
        timed = self._config.measure.exclusive
        before = self._session.probe() if timed else 1.0
        order = list(turns)
        if (self._index + attempt) % 2 and not self._needs_reference:
            order.reverse()
        answers: dict[str, Answer] = {}
        for position, arm in enumerate(order):
            reference = answers[BASELINE].generation if BASELINE in answers else None
            answers[arm] = self._answer(arm, turns[arm], reference)
            answers[arm].attempt, answers[arm].ran_first = attempt, position == 0
        after = self._session.probe() if timed else 1.0
        return abs(after / before - 1.0), [answers[arm] for arm in turns]

    def _worth_repeating(self, attempts: Sequence[tuple[float, list[Answer]]]) -> bool:
        drift, answers = attempts[-1]
        return drift > MAX_DRIFT and not _failed(answers) and self._repetitions.allowed(len(attempts))

    @property
    def _repeatable(self) -> bool:
        """Only where nothing that earlier samples taught would be lost or learnt twice."""
        return self._paired and self._config.method.scope == "sample"

    @property
    def _replayed(self) -> bool:
        """Whether the method's answer is AR's by construction: then it proves nothing and took no memory of its own."""
        return self._config.measure.acceptance == "replay"

    @property
    def _needs_reference(self) -> bool:
        return self._config.method.controller.bound or getattr(self._session.method, "needs_reference", False)

    def _answer(self, arm: str, turn: Turn, reference: Generation | None) -> Answer:
        generator = self._session.baseline if arm == BASELINE else self._session.method
        answer = Answer(turn, arm, timed=self._config.measure.exclusive, load_before=load_now())
        try:
            if arm == BASELINE and self._stored is not None:
                return self._stored.answer(turn)
            with PeakMemory(self._config.hardware.device) as memory:
                answer.generation = self._generate(generator, turn, reference)
        except SampleError as error:
            answer.error = str(error)
        except Exception as error:  # out of memory and the like cost one sample, not the run
            log.exception("sample %s failed", turn.sample.id)
            answer.error = f"{type(error).__name__}: {error}"
        answer.load_after = load_now()
        if answer.generation is not None:
            answer.finish_reason = answer.generation.finish_reason
            answer.text = self._session.chat.decode(answer.generation.tokens)
            answer.peak_memory_bytes = None if self._replayed else memory.bytes
        return answer

    def _generate(self, generator: Generator, turn: Turn, reference: Generation | None) -> Generation:
        return generator.generate(
            turn.tokens,
            max_new_tokens=self._max_new_tokens,
            seed=turn.seed,
            stop_ids=self._session.model.stop_ids,
            reference_ids=reference.tokens if reference is not None else None,
        )

    def _too_long(self, arm: str, turn: Turn) -> Answer | None:
        limit = self._session.model.spec.max_positions
        needed = len(turn.tokens) + self._max_new_tokens
        if needed <= limit:
            return None
        reason = (
            f"the prompt of {len(turn.tokens)} tokens and {self._max_new_tokens} new ones exceed the model's context "
            f"of {limit}; task.truncate=true cuts the prompt"
        )
        return Answer(turn, arm, finish_reason="skipped", error=reason)

    # ---- exactness

    def _compare(self, answers: Sequence[Answer]) -> None:
        """Mark the method's answer as equal to AR's, or say where it left it and whether rounding explains that."""
        found = {answer.arm: answer for answer in answers}
        if len(found) < 2 or not self._session.sampling.greedy or self._replayed:
            return
        own, baseline = found[METHOD], found[BASELINE]
        if own.generation is None or baseline.generation is None or own.turn.tokens != baseline.turn.tokens:
            return
        prompt, expected = list(own.turn.tokens), baseline.generation.tokens
        index = first_divergence(own.generation.tokens, expected)
        comparison: dict[str, Any] = {"exact_match": index is None}
        if own.generation.steps is not None:
            comparison["teacher_agreement"] = self._agreement(prompt, expected)
        if index is not None:
            comparison |= self._divergence(prompt, own.generation.tokens, expected, index)
        own.comparison = comparison

    def _agreement(self, prompt: list[int], expected: Sequence[int]) -> float:
        """Teacher agreement of AR's answer, which attempts and repeats of one turn have in common."""
        tokens = (*prompt, *expected)
        if tokens not in self._agreements:
            self._agreements[tokens] = teacher_agreement(self._session.target, prompt, expected)
        return self._agreements[tokens]

    def _divergence(self, prompt: list[int], own: Sequence[int], expected: Sequence[int], index: int) -> dict[str, Any]:
        if index >= min(len(own), len(expected)):
            return {"divergence_index": index, "divergence_gap": None, "divergence_class": "bug"}
        prefix = [*prompt, *expected[:index]]
        gap = logit_gap(self._session.model.decoder, prefix, own[index], expected[index])
        limit = self._config.measure.tie_gap  # the config resolved it by dtype
        tie = limit is not None and gap < limit
        return {"divergence_index": index, "divergence_gap": gap, "divergence_class": "tie" if tie else "bug"}


def _failed(answers: Sequence[Answer]) -> bool:
    return any(answer.generation is None for answer in answers)


def _without_middle(tokens: list[int], room: int) -> list[int]:
    """The first and last tokens: a prompt's frame and its question are at its ends."""
    head = room // 2
    return [*tokens[:head], *tokens[len(tokens) - (room - head) :]]


def warm_up(session: Session, sample: Sample, *, passes: int, max_new_tokens: int) -> None:
    """Decode the start of one sample with both arms and forget it; a failure is left to the samples to record."""
    tokens = session.encode_question(sample.turns[0], raw=sample.raw)
    tokens = tokens[: session.model.spec.max_positions - max_new_tokens]
    reference: tuple[int, ...] | None = None
    try:
        for generator in (session.baseline, session.method) * passes:
            answer = generator.generate(
                tokens, max_new_tokens=max_new_tokens, seed=0, stop_ids=session.model.stop_ids, reference_ids=reference
            )
            reference = reference or answer.tokens
    except Exception as error:
        log.warning("the warm-up failed: %s: %s", type(error).__name__, error)
    session.method.reset()
