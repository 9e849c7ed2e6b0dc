"""A trained controller that a run needs and nobody has made is made before anything is timed, and kept by its key."""

from __future__ import annotations

import dataclasses
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from specbench.config import RunConfig
from specbench.hardware.lock import exclusive
from specbench.methods.build import artefact_key
from specbench.models.artefact import Artefact, Key, key_digest
from specbench.results.files import make_folder
from specbench.runner.controller_training import rollouts, train
from specbench.runner.held_out import mixed_prompts
from specbench.runner.pacer_training import train_pacer
from specbench.runner.planning import duration
from specbench.runner.session import Session
from specbench.training.rollouts import Rollouts, load_rollouts
from specbench.types import ModelError

log = logging.getLogger(__name__)

_DRAFT_TOKENS = 20  # the longest drafts of what is trained here, so that all kinds learn from the same steps


def make_missing(session: Session, kind: str, key: Key) -> Path:
    """The card of a part of this kind for `key`: made before, perhaps by another process, or made now.

    The device is held meanwhile: costs are measured. What was collected is kept for the other kinds.
    """
    folder = session.made_folder
    make_folder(folder)
    path = folder / f"{kind}-{key_digest(key)}.json"
    with FileLock(path.with_suffix(".lock")), exclusive(session.config.hardware.device):
        if not path.is_file():
            log.info("no %s is stored for this model, draft and setting: it is made now", kind)
            _made(session, kind).save(path)
            log.info("%s is kept in %s", kind, path)
    return path


def _made(session: Session, kind: str) -> Artefact:
    config = session.config
    sampling = dataclasses.replace(config.sampling, max_new_tokens=config.artefact.max_new_tokens)
    config = dataclasses.replace(config, sampling=sampling)
    data = _collected(config, session)
    begun = time.monotonic()
    if kind == "pacer":
        part = train_pacer(config, session, data)
    else:
        state = getattr(config.method.controller, "state", None)
        part = train(kind, config, session, data, **({} if state is None else {"state": state}))
    made: dict[str, Any] = {
        "command": "none: a run made it (artefact.if_missing=build)",
        "prompts": "a mix of held-out ones",
        "fit_s": time.monotonic() - begun,
        "git": session.environment()["git"],
    }
    return dataclasses.replace(part, card={**part.card, **made})


def _collected(config: RunConfig, session: Session) -> Rollouts:
    """Steps of the method on held-out prompts: those of an earlier part, or new ones."""
    longest = max(_DRAFT_TOKENS, int(getattr(config.method.controller, "num_draft_tokens", 1)))
    how = {"longest": longest, "seed": config.seed, **dataclasses.asdict(config.artefact)}
    key = {**artefact_key(config.method, session.parts), **{name: str(value) for name, value in how.items()}}
    path = session.made_folder / f"steps-{key_digest(key)}.safetensors"
    if path.is_file():
        return load_rollouts(path)
    prompts = mixed_prompts(config, session, config.artefact.num_prompts)
    begun = time.monotonic()
    with suppress(ModelError):  # an answer of one token drafts nothing
        rollouts(config, session, prompts[:1], num_draft_tokens=longest)
    estimate = duration((time.monotonic() - begun) * len(prompts))
    log.info("collecting steps on %d held-out prompts, about %s", len(prompts), estimate)
    data = rollouts(config, session, prompts, num_draft_tokens=longest)
    data.save(path)
    return data
