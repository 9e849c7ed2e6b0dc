"""Which blocks there are, and how their results become one file that later runs of single blocks update."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from specbench.types import DataError

from .fresh import load_time, memory
from .host import host_share, host_share_skipping
from .longdoc import longdoc
from .lookup import lookup
from .measure import Figure, run_block
from .order import order
from .search import optimisation
from .self_speculation import self_speculation
from .skipping import skipping
from .speed import ar_against_library, floor, verify_cost
from .stage import Settings, Stage

BLOCKS: dict[str, Callable[[Stage, Settings], Sequence[Figure]]] = {
    "ar": ar_against_library,
    "floor": floor,
    "curve": verify_cost,
    "host": host_share,
    "pld": lookup,
    "memory": memory,
    "load": load_time,
    "skipping": skipping,
    "optimisation": optimisation,
    "knapspec": self_speculation,
    "host_skip": host_share_skipping,
    "longdoc": longdoc,
    "order": order,
}


@dataclass(frozen=True)
class Machine:
    """What a result file is about; files of different ones are never mixed."""

    model: str
    dtype: str
    threads: int
    size: str  # full | quick

    @property
    def slug(self) -> str:
        name = re.sub(r"[^\w.-]+", "-", re.split("[/:]", self.model)[-1])
        return f"{name}-{self.dtype}-{self.threads}t" + ("" if self.size == "full" else f"-{self.size}")


def measure(machine: Machine, names: Sequence[str], settings: Settings, command: str) -> Iterator[dict[str, Any]]:
    """One result a block, as it is finished: machine, environment and the block with its command and commit."""
    stage = Stage(machine.model, machine.dtype, machine.threads)
    environment = stage.session.environment()
    git = environment.pop("git") or {}
    for name in names:
        block = run_block(name, partial(BLOCKS[name], stage, settings)).as_json()
        block |= {"command": command, "commit": git.get("commit"), "dirty": git.get("dirty")}
        yield {"machine": asdict(machine), "environment": environment, "settings": asdict(settings), "block": block}


def merge(stored: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """`stored` with the block of `result` in its place; DataError where the two do not belong together.

    A setting that a stored file does not have belongs to blocks that it does not have either.
    """
    block = result["block"]
    for key in ("machine", "settings"):
        made = _as_stored(result[key])
        if not _within(stored.get(key, {}), made):
            raise DataError(f"the result file holds another {key}: {stored.get(key)}; name a new file with --out")
    blocks = {**stored.get("blocks", {}), block["name"]: block}
    ordered = {name: blocks[name] for name in BLOCKS if name in blocks}
    return {key: _as_stored(result[key]) for key in ("machine", "settings", "environment")} | {"blocks": ordered}


def _within(stored: Any, made: Any) -> bool:
    """Whether everything that was stored is still so; what has been added since does not matter."""
    if isinstance(stored, Mapping) and isinstance(made, Mapping):
        return all(key in made and _within(value, made[key]) for key, value in stored.items())
    return bool(stored == made)


def _as_stored(value: Any) -> Any:
    """What JSON makes of a value: tuples come back as lists."""
    if isinstance(value, Mapping):
        return {key: _as_stored(inner) for key, inner in value.items()}
    return [_as_stored(inner) for inner in value] if isinstance(value, list | tuple) else value
