"""A graph as Mermaid text: every edge, guard and barrier is visible, and equal graphs look equal."""

from __future__ import annotations

from docket_celery import FINISH, START, Graph


def authored() -> Graph:
    return (
        Graph("order")
        .input("total", float)
        .field("note", str)
        .node("b", "proj:b")
        .node("a", "proj:a")
        .node("c", "proj:c")
        .edge(START, "a")
        .edge(START, "b", when='note == "x|<y>"')
        .edge(["b", "a"], "c", when="total > 1.0")
        .edge("c", FINISH)
    )


def test_the_picture_shows_nodes_guards_and_barriers() -> None:
    assert authored().to_mermaid().splitlines() == [
        "flowchart TD",
        '    start(("start"))',
        '    finish(("finish"))',
        '    n0["a"]',
        '    n1["b"]',
        '    n2["c"]',
        "    start --> n0",
        '    start -->|"note == &quot;x|&lt;y&gt;&quot;"| n1',
        '    join0{{"all of a, b"}}',
        "    n0 --> join0",
        "    n1 --> join0",
        '    join0 -->|"total &gt; 1.0"| n2',
        "    n2 --> finish",
    ]


def test_the_order_of_authoring_does_not_change_the_picture() -> None:
    other = (
        Graph("order")
        .field("note", str)
        .input("total", float)
        .node("c", "proj:c")
        .node("a", "proj:a")
        .node("b", "proj:b")
        .edge("c", FINISH)
        .edge(["a", "b"], "c", when="total > 1.0")
        .edge(START, "b", when='note == "x|<y>"')
        .edge(START, "a")
    )
    assert other.to_mermaid() == authored().to_mermaid()
