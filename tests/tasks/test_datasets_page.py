"""docs/datasets.md names the files that data=local reads, all of them, task by task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specbench.tasks import TASK_NAMES, WITH_TRAIN_SPLIT, build_task
from specbench.types import ConfigError, DataError

ROW = re.compile(r"^\| `(\S+\.jsonl(?:\.gz)?)` \| ([^|]+) \| [^|]*(?:https://|the same)[^|]* \|$", re.MULTILINE)


def read_by(task: str, split: str, folder: Path) -> str:
    """The file that a task asks for in an empty folder."""
    with pytest.raises(DataError, match="no file ") as caught:
        build_task(task, source="local", data_dir=folder, split=split)
    return str(Path(str(caught.value).removeprefix("no file ").partition(":")[0]).relative_to(folder))


def test_the_page_names_every_file_that_is_read_and_no_other(repo_root: Path, tmp_path: Path) -> None:
    rows = ROW.findall((repo_root / "docs" / "datasets.md").read_text(encoding="utf-8"))
    told = {(file, task) for file, tasks in rows for task in re.findall(r"`(\w+)`", tasks)}
    tasks = [task for task in TASK_NAMES if task != "longdoc"]  # made, not read
    read = {(read_by(task, "test", tmp_path), task) for task in tasks}
    for task in WITH_TRAIN_SPLIT:
        try:
            read.add((read_by(task, "train", tmp_path), task))
        except ConfigError:
            continue  # its train split is not a local file
    assert told == read
