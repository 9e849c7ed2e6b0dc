"""The reader of .wandb files copes with a file that another process is still writing."""

from __future__ import annotations

import struct

import pytest

from tests.loggers import wandb_file


def _framed(*payloads: bytes) -> bytes:
    return bytes(7) + b"".join(struct.pack("<IHB", 0, len(p), 1) + p for p in payloads)


@pytest.fixture
def content() -> bytes:
    from wandb.proto import wandb_internal_pb2 as pb

    exit_code = pb.Record(exit=pb.RunExitRecord(exit_code=3))
    run = pb.Record(run=pb.RunRecord(run_id="mine", project="p" * 50))
    return _framed(run.SerializeToString(), exit_code.SerializeToString())


def test_records_are_waited_for_wherever_the_file_is_cut(content, tmp_path, monkeypatch):
    file = tmp_path / "run.wandb"

    def write_the_rest(seconds):
        file.write_bytes(content)

    monkeypatch.setattr(wandb_file.time, "sleep", write_the_rest)
    for length in range(len(content)):
        file.write_bytes(content[:length])
        assert [record.WhichOneof("record_type") for record in wandb_file.records(file)] == ["run", "exit"]
        assert wandb_file.run(file).run_id == "mine"


def test_a_run_that_never_ends_is_an_error(content, tmp_path, monkeypatch):
    monkeypatch.setattr(wandb_file.time, "sleep", lambda seconds: None)
    file = tmp_path / "run.wandb"
    file.write_bytes(content[:-1])
    with pytest.raises(AssertionError, match="does not end"):
        wandb_file.records(file)
