"""Guards and CEL's edges."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from docket_celery.errors import GuardError
from docket_celery.graph.guards import MAX_COMPREHENSIONS, MAX_LENGTH, MAX_NESTING, parse_guard


@pytest.mark.parametrize(
    ("source", "values", "holds"),
    [
        ("total > 1000.0", {"total": 1250.0}, True),
        ("total > 1000.0", {"total": 1250}, True),
        ("!approved", {"approved": False}, True),
        ("x == null", {}, True),
        ("'k' in d && d.k.size() > 1", {"d": {"k": [1, 2]}}, True),
        ("log.exists(entry, entry == 'a')", {"log": ["b", "a"]}, True),
        ("x.all(x, x > 1)", {"x": [1, 2]}, False),
        ("[1, 2].exists(x, x == 2) && x", {"x": False}, False),
        ("type(total) == int", {"total": 1}, True),
        ("timestamp(at).getFullYear() == 2024", {"at": "2024-02-29T00:00:00Z"}, True),
        ("a == 'x' // a comment with (brackets", {"a": "x"}, True),
        ("a == '''it's ( \" here'''", {"a": "it's ( \" here"}, True),
        (r"r'\(' == a", {"a": "\\("}, True),
        ("n > 9223372036854775806", {"n": 2**63 - 1}, True),
        ("a == 'a\\u0000b'", {"a": "a\x00b"}, True),
    ],
)
def test_a_guard_holds_of_the_values_it_reads(source: str, values: dict[str, Any], holds: bool) -> None:
    assert parse_guard(source).holds(values) is holds


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("a.b.c > d['e']", ("a", "d")),
        ("log.exists(entry, entry == wanted)", ("log", "wanted")),
        ("x.all(x, x > 1)", ("x",)),
        ("[1].all(x, x > 1)", ()),
        ("[1].all(x, x > 1) && x", ("x",)),
        ("[[1]].all(x, x.all(y, y > x[0] && z))", ("z",)),
        ("{k: v}.size() > 0", ("k", "v")),
        ("size(size) > 0", ("size",)),
        ("type(a) == int", ("a",)),
        ("a == 'b' && c == \"d\" // e", ("a", "c")),
        ("true", ()),
    ],
)
def test_referenced_fields_leave_out_what_a_comprehension_binds(source: str, fields: tuple[str, ...]) -> None:
    assert parse_guard(source).fields == fields


def test_only_the_referenced_fields_are_handed_over() -> None:
    assert parse_guard("a == 1").holds({"a": 1, "huge": 2**80, "odd": object()})


@pytest.mark.parametrize(
    "source",
    [
        "",
        "a >",
        "(a",
        "a &&& b",
        "if == 1",
        "a == '\ud800'",
        "n > 9223372036854775808",
        "Point{x: 1} == a",
        ".a",
        "a ? b",
    ],
)
def test_what_does_not_parse_is_a_guard_error(source: str) -> None:
    with pytest.raises(GuardError):
        parse_guard(source)


def test_size_and_nesting_are_capped() -> None:
    assert parse_guard("(" * MAX_NESTING + "a" + ")" * MAX_NESTING).holds({"a": True})
    inner = "true"
    for level in range(MAX_COMPREHENSIONS + 1):
        inner = f"a.all(x{level}, {inner})"
    for source in (
        "a" * (MAX_LENGTH + 1),
        "(" * (MAX_NESTING + 1) + "a" + ")" * (MAX_NESTING + 1),
        "(" * 3_000,
        "[" * 3_000,
        inner,
    ):
        with pytest.raises(GuardError):
            parse_guard(source)


def test_long_flat_guards_do_not_exhaust_the_stack() -> None:
    assert parse_guard("!" * 2_000 + "a").holds({"a": True})
    assert parse_guard(" && ".join(["a"] * 700)).holds({"a": True})
    with pytest.raises(GuardError):
        parse_guard("a" + ".b" * 1_900).holds({"a": {}})


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("a", {"a": 1}),
        ("a", {"a": "true"}),
        ("a", {}),
        ("a > 1", {}),
        ("a > 1", {"a": "x"}),
        ("a.b", {"a": {}}),
        ("a[0]", {"a": []}),
        ("1 / a > 0", {"a": 0}),
        ("a + 1 > 0", {"a": 2**63 - 1}),
        ("a > 1", {"a": 2**63}),
        ("a > 1", {"a": -(2**63) - 1}),
        ("a.b[0] > 1", {"a": {"b": [2**64]}}),
        ("a == 'x'", {"a": "\ud800"}),
        ("a.matches('(')", {"a": "x"}),
        ("no_such(a)", {"a": 1}),
    ],
)
def test_whatever_goes_wrong_in_evaluation_is_a_guard_error_that_quotes_the_guard(
    source: str, values: dict[str, Any]
) -> None:
    with pytest.raises(GuardError) as raised:
        parse_guard(source).holds(values)
    assert repr(source) in str(raised.value)


def test_unknown_functions_are_told_though_they_parse() -> None:
    assert parse_guard("no_such(a) && a.other() && size(a) > 0").unknown_functions == ("no_such", "other")
    assert parse_guard("a.all(k, v, v)").unknown_functions == ("all",)
    assert parse_guard("-a + 1 - 2 * 3 / 4 % 5 <= 6 || a != 1 && !(a in [1]) ? true : a >= 1").unknown_functions == ()


def test_every_function_that_verification_lets_pass_exists() -> None:
    strings = ["contains('a')", "startsWith('a')", "endsWith('a')", "matches('a')", "size() > 0"]
    dates = (
        "getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours getMilliseconds getMinutes getMonth "
        "getSeconds"
    )
    sources = [f"'a'.{call}" for call in strings]
    sources += [f"timestamp('2024-02-29T00:00:00Z').{call}() >= 0" for call in dates.split()]
    sources += [
        "duration('1h') > duration('1m')",
        "int('1') == 1",
        "uint(1) == 1u",
        "double(1) == 1.0",
        "string(1) == '1'",
    ]
    sources += ["bytes('a') == b'a'", "dyn(1) == 1", "type(1) == int"]
    for source in sources:
        guard = parse_guard(source)
        assert guard.unknown_functions == (), source
        assert guard.holds({}), source


def test_a_guard_works_in_every_thread() -> None:
    guard = parse_guard("a > 1")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(guard.holds({"a": 2})))
    thread.start()
    thread.join()
    assert answers == [True]


class Evaluator:
    """Stands in for a compiled program that ends in an exception outside `Exception`."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def execute(self, values: object) -> object:
        raise self.error


def test_a_panic_is_a_guard_error_but_an_interruption_is_not() -> None:
    from docket_celery.graph.guards import Guard

    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    program: Any = Evaluator(panic("index out of bounds"))
    with pytest.raises(GuardError, match="index out of bounds"):
        Guard(source="a", fields=(), _program=program).holds({})
    program = Evaluator(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        Guard(source="a", fields=(), _program=program).holds({})


def test_guards_are_equal_by_their_source() -> None:
    assert parse_guard("a > 1") == parse_guard("a > 1") != parse_guard("a > 2")
