"""Other spellings of keys mean the same, and cards hold no path of the machine they were made on."""

from __future__ import annotations

import pytest

from specbench.config import compose
from specbench.config.words import portable, spelled


def test_models_can_be_spelt_as_paths_with_revisions() -> None:
    words = ["model=llama3", "model.target.path=a/b", "model.draft.path=c/d=e", "model.target.revision=main", "-m"]
    assert spelled(words) == [
        "model=llama3",
        "model.target=a/b",
        "model.draft=c/d=e",
        "model.target_revision=main",
        "-m",
    ]
    model = compose(["model=llama3", "model.target.path=x/y", "model.draft.path=x/z"]).model
    assert (model.target, model.draft) == ("x/y", "x/z")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("data.dir=../shared/data", "data.dir=FOLDER"),
        ("paths.cache_dir=/home/somebody/cache", "paths.cache_dir=FOLDER"),
        ("corpus.instructions=~/texts/seed.jsonl", "corpus.instructions=FILE"),
        ("/home/somebody/prompts.jsonl", "FILE"),
        ("--prompts=./prompts.jsonl", "--prompts=FILE"),
        ("model.target=owner/name", "model.target=owner/name"),
        ("training.layers=[0,1,-1]", "'training.layers=[0,1,-1]'"),
        ("artefact:smollm2", "artefact:smollm2"),
    ],
)
def test_paths_of_this_machine_stay_here(word: str, told: str) -> None:
    assert portable(["python", "scripts/train_draft.py", word]) == f"python scripts/train_draft.py {told}"
