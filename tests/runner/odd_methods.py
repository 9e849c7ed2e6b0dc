"""Methods that go wrong on purpose, for the runner to notice: AR with one thing spoiled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specbench.decoding.loop import SpeculativeDecoding
from specbench.methods.ar import Autoregressive
from specbench.methods.build import Parts
from specbench.types import Generation


@dataclass
class Odd:
    """AR; a subclass spoils an answer."""

    inner: SpeculativeDecoding
    resets: int = 0

    @classmethod
    def build(cls, config: Any, parts: Parts) -> Odd:
        return cls(SpeculativeDecoding(parts.target, Autoregressive(), parts.sampling, timer=parts.timer))

    def generate(self, prompt: Any, **arguments: Any) -> Generation:
        return self.spoil(self.inner.generate(prompt, **arguments), len(prompt))

    def spoil(self, answer: Generation, prompt_length: int) -> Generation:
        return answer

    def reset(self) -> None:
        self.resets += 1


class WrongToken(Odd):
    """The fourth token is another one, and the text shows it: a letter of plain ASCII."""

    def spoil(self, answer: Generation, prompt_length: int) -> Generation:
        tokens = list(answer.tokens)
        tokens[3] = 34 if tokens[3] == 33 else 33
        return replace(answer, tokens=tuple(tokens))


class TooShort(Odd):
    """The last token is missing."""

    def spoil(self, answer: Generation, prompt_length: int) -> Generation:
        return replace(answer, tokens=answer.tokens[:-1])


class OutOfMemory(Odd):
    """Fails after a whole answer was decoded, the second time it is asked."""

    calls = 0

    def spoil(self, answer: Generation, prompt_length: int) -> Generation:
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
        return answer


class WithoutSteps(Odd):
    """Like an outside reference: an answer and no steps."""

    def spoil(self, answer: Generation, prompt_length: int) -> Generation:
        return replace(answer, steps=None)


class Searching(Odd):
    """Says that it searches, and never does."""

    @dataclass
    class Drafter:
        searches: bool = True

    drafter = Drafter()


class NeedsReference(Odd):
    """Reads AR's answer, so AR always runs first."""

    needs_reference = True

    def generate(self, prompt: Any, **arguments: Any) -> Generation:
        answer = self.inner.generate(prompt, **arguments)
        assert arguments["reference_ids"] == answer.tokens
        return answer


class Learning(Odd):
    """Counts what was decoded since the last reset and says so in the place of a peak token count."""

    heard: tuple[int, ...] = ()

    def spoil(self, answer: Generation, prompt_length: int) -> Generation:
        self.heard = (*self.heard, prompt_length)
        steps = tuple(replace(step, info={"heard": len(self.heard)}) for step in answer.steps or ())
        return replace(answer, steps=steps)

    def reset(self) -> None:
        self.heard = ()
