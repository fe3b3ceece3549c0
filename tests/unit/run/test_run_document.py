"""A run that was handed out without some of its values says so, and never answers for them."""

from __future__ import annotations

import pytest
from support.builders import a_run


def test_the_output_of_a_run_is_refused_while_any_of_it_is_unread() -> None:
    run = a_run(fields={"n": 1}, unread=frozenset({"log"}))
    with pytest.raises(ValueError, match="log has not been read"):
        _ = run.output
    assert a_run(fields={"n": 1}, unread=frozenset({"log"}), outputs=("n",)).output == {"n": 1}


def test_what_was_read_is_there_and_the_rest_is_still_unread() -> None:
    run = a_run(fields={"n": 1}, unread=frozenset({"log", "text"})).having_read({"log": [1]})
    assert (run.fields, run.unread) == ({"n": 1, "log": [1]}, {"text"})
    assert run.having_read({"text": "t"}).output == {"log": [1], "n": 1, "text": "t"}
