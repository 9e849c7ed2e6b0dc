"""A target given on the command line in place of the default model file's own: nothing of the file describes it."""

from __future__ import annotations

import copy
import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from specbench.config.errors import CONF_DIR

_MADE_HERE = ("embedded:", "tiny:")  # models without a network, whose data then needs none either


def with_own_target(cfg: DictConfig, words: Sequence[str]) -> DictConfig:
    """The config with model's name, display name, draft and data as they are for a target that its file does not name.

    Only where `words` (those of the command line) choose no model file: `model=llama3 model.target=FOLDER` is llama3,
    from another place. What `words` or the user's own defaults say about the model stays.
    """
    model = cfg.get("model")
    given = {word.partition("=")[0].lstrip("+") for word in words}
    file = _model_file(str(model.name)) if model is not None and "model" not in given else None
    if file is None or model.target == file["target"]:
        return cfg
    own = _described(str(model.target))
    stale = {key for key in own if f"model.{key}" not in given and model[key] == file.get(key)}
    cfg = copy.deepcopy(cfg)
    for key in stale:
        cfg.model[key] = own[key]
    return cfg


def _described(target: str) -> dict[str, str | None]:
    """What a model file for this target alone would say; names are its folder's, file's or Hub id's last part."""
    last = os.path.basename(os.path.abspath(os.path.expanduser(target)))
    shown = last.removesuffix(".gguf") or "model"
    return {
        "name": re.sub(r"[^A-Za-z0-9_.]+", "_", shown),
        "display_name": shown,
        "draft": None,
        "data": "embedded" if target.startswith(_MADE_HERE) else "hub",
    }


@functools.cache
def _model_file(name: str) -> dict[str, Any] | None:
    path: Path = CONF_DIR / "model" / f"{name}.yaml"
    return dict(OmegaConf.load(path)) if path.is_file() else None
