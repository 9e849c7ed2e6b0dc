"""Where schemas are kept: under `schema/` groups, so that `method=glob(*)` sweeps over YAML files only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hydra.core.config_store import ConfigStore

T = TypeVar("T")


def schema(group: str, name: str = "base") -> Callable[[type[T]], type[T]]:
    """Store a dataclass as `schema/<group>/<name>`; a YAML file pulls it in with `/schema/<group>@_here_: <name>`."""

    def store(cls: type[T]) -> type[T]:
        ConfigStore.instance().store(group=f"schema/{group}", name=name, node=cls)
        return cls

    return store
