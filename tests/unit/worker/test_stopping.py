"""A worker's processes learn that it stops."""

from __future__ import annotations

import os

import pytest
from billiard import common

from docket_celery.worker.stopping import StopFlag, is_being_terminated


def test_a_forked_child_sees_the_flag_that_its_parent_raises_later() -> None:
    flag = StopFlag()
    assert not flag()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0 if flag() else 1)
    flag.raise_()
    os.close(writer)
    os.close(reader)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_flag_that_was_lowered_can_be_raised_again() -> None:
    flag = StopFlag()
    flag.raise_()
    flag.lower()
    assert not flag()
    flag.raise_()
    assert flag()


def test_a_child_whose_terminate_handler_has_run_is_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = StopFlag()
    assert not flag()
    monkeypatch.setattr(common, "_should_have_exited", [True])
    assert is_being_terminated()
    assert flag()
