"""How an experiment file says what depends on its size or on another choice.

`${sized:SMOKE,EMBEDDED,PUBLISHED}` gives the value for the root key `size`,
`${pick:KEY,{a:1,b:2},OTHERWISE}` the entry of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from specbench.config.checks import one_of

SIZES = ("smoke", "embedded", "published")


def sized(smoke: Any, embedded: Any, published: Any, *, _root_: DictConfig) -> Any:
    """The value that belongs to the root key `size`; ConfigError where that is none of SIZES."""
    one_of("size", _root_.size, SIZES)
    return dict(zip(SIZES, (smoke, embedded, published), strict=True))[_root_.size]


def pick(key: str, table: Mapping[str, Any], otherwise: Any) -> Any:
    """The entry of `table` under `key`, or `otherwise`."""
    return table.get(key, otherwise)


OmegaConf.register_new_resolver("sized", sized, replace=True)
OmegaConf.register_new_resolver("pick", pick, replace=True)
