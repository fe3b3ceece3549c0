"""The report as one HTML file that needs nothing else: no script, no font, no network. Everything shown is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

_COLOURS: Final = {
    "permissive": "#2f9e6e",
    "weak copyleft": "#3b7dd8",
    "strong copyleft": "#c47f17",
    "proprietary": "#8e5bd0",
    "unknown": "#c8443c",
}
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2430; --dim: #667085; --line: #e3e7ee; --paper: #fbfcfe; --card: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ebf1; --dim: #98a2b3; --line: #2d3442; --paper: #12161d; --card: #1a202a } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 3rem 1.5rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, sans-serif }
h1 { font-size: 1.9rem; letter-spacing: -.02em; margin: 0 } h2 { font-size: 1.15rem; margin: 2.6rem 0 .8rem }
p { margin: .3rem 0 } .dim, small { color: var(--dim) } code { font-size: .85em }
.bar { display: flex; height: 14px; border-radius: 7px; overflow: hidden; margin: 1.6rem 0 .8rem; gap: 2px }
.legend, .cards { display: flex; flex-wrap: wrap; gap: .5rem 1.6rem }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .45em }
.cards { gap: 1rem; margin-top: 1.6rem }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; flex: 1;
  padding: .8rem 1.2rem }
.cards b { display: block; font-size: 1.5rem; letter-spacing: -.02em }
table { width: 100%; border-collapse: collapse; background: var(--card); border: 1px solid var(--line) }
th, td { text-align: left; vertical-align: top; padding: .45rem .7rem; border-top: 1px solid var(--line) }
th { font-weight: 600; color: var(--dim); font-size: .82rem; white-space: nowrap } td.n, th.n { text-align: right }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap } td { overflow-wrap: anywhere }
.scroll { overflow-x: auto } ul { margin: 0; padding-left: 1.1rem }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem }
"""

Entry = Mapping[str, Any]


def render(
    entries: Sequence[Entry],
    totals: Mapping[str, tuple[int, int]],
    context: Mapping[str, str],
    human: Callable[[int], str],
) -> str:
    """The whole page. `entries` come riskiest first; `context` is shown at the foot, label by label."""
    asked = [entry for entry in entries if entry["verdict"] is not None]
    deviating = [entry for entry in entries if entry["mismatches"] or entry["missing"] or not entry["recorded"]]
    biggest = sorted(entries, key=lambda entry: -entry["bytes"])[:10]
    sections = [
        _section(
            "Risk",
            [entry for entry in entries if entry["risk"]],
            _risk_row,
            ("Risk#", "Distribution", "Licence", "Why"),
        ),
        _section("Decided by verdict", asked, _verdict_row, ("Distribution", "What was in question", "Verdict")),
        _section("Not as installed", deviating, _deviation_row, ("Distribution", "Changed#", "Missing#", "Which")),
        _section(
            "Biggest",
            biggest,
            lambda entry: _size_row(entry, human),
            ("Distribution", "Size#", "Files#", "Native#", "Largest file"),
        ),
        _section(
            "Everything",
            sorted(entries, key=lambda e: e["name"].lower()),
            _plain_row,
            ("Distribution", "Licence", "Category", "Risk#", "Evidence", "SHA-256 of the tree"),
        ),
    ]
    facts = {
        "distributions": str(len(entries)),
        "files hashed": f"{sum(entry['files'] for entry in entries):,}",
        "size": human(sum(entry["bytes"] for entry in entries)),
        "files not as installed": str(sum(entry["mismatches"] + entry["missing"] for entry in entries)),
        "verdicts": str(len(asked)),
    }
    cards = "".join(f"<div><b>{escape(value)}</b><small>{escape(name)}</small></div>" for name, value in facts.items())
    foot = "".join(f"<p><small>{escape(name)}: {escape(value)}</small></p>" for name, value in context.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Licence audit</title><style>{_STYLE}</style><body><h1>Licence audit</h1>"
        f'<p class="dim">Every Python distribution of one environment: its licence, its files, its risk.</p>'
        f"{_bar(totals)}<div class=cards>{cards}</div>{''.join(sections)}<footer>{foot}</footer></body></html>\n"
    )


def _bar(totals: Mapping[str, tuple[int, int]]) -> str:
    parts = "".join(
        f'<div style="flex:{count};background:{_COLOURS[category]}" title="{escape(category)}: {count}"></div>'
        for category, (count, _) in totals.items()
    )
    legend = "".join(
        f"<span>{_dot(category)}{escape(category)} <b>{count}</b></span>" for category, (count, _) in totals.items()
    )
    return f"<div class=bar>{parts}</div><div class=legend>{legend}</div>"


def _section(
    title: str, entries: Sequence[Entry], row: Callable[[Entry], Iterable[str]], headings: Sequence[str]
) -> str:
    """A heading and its table; a heading's trailing # makes a column of figures. Nothing at all without entries."""
    if not entries:
        return f'<h2>{title}</h2><p class="dim">Nothing to report.</p>'
    kinds = [" class=n" if heading.endswith("#") else "" for heading in headings]
    head = "".join(f"<th{kind}>{heading.rstrip('#')}</th>" for kind, heading in zip(kinds, headings, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row(entry), strict=True)) + "</tr>"
        for entry in entries
    )
    return f"<h2>{title}</h2><div class=scroll><table><tr>{head}</tr>{rows}</table></div>"


def _risk_row(entry: Entry) -> Iterable[str]:
    reasons = "".join(f"<li>{escape(words)} <small>+{points}</small></li>" for points, words in entry["reasons"])
    return f"<b>{entry['risk']}</b>", _name(entry), _licence(entry), f"<ul>{reasons}</ul>"


def _verdict_row(entry: Entry) -> Iterable[str]:
    verdict = entry["verdict"]
    decided = "accepted" if verdict["accept"] else "<b>rejected</b>"
    note = f"<br><small>{escape(verdict.get('note', ''))}</small>"
    return _name(entry), escape(entry["conflict"] or entry["standing"]), f"{_licence(entry)}, {decided}{note}"


def _deviation_row(entry: Entry) -> Iterable[str]:
    paths = "<br>".join(f"<code>{escape(path)}</code>" for path in entry["deviating"])
    which = paths if entry["recorded"] else "it has no RECORD to verify against"
    return _name(entry), str(entry["mismatches"]), str(entry["missing"]), which


def _size_row(entry: Entry, human: Callable[[int], str]) -> Iterable[str]:
    largest = "".join(
        f"<code>{escape(path)}</code> <small>{human(size)}</small>" for path, size in entry["largest"][:1]
    )
    return _name(entry), human(entry["bytes"]), f"{entry['files']:,}", str(entry["native"]), largest


def _plain_row(entry: Entry) -> Iterable[str]:
    heard = "; ".join(f"{said['witness']}: {said['says']}" for said in entry["evidence"])
    kind = f"{_dot(entry['category'])}{escape(entry['category'])}"
    digest = f"<code>{escape(entry['tree_sha256'][:16])}</code>"
    return _name(entry), _licence(entry), kind, str(entry["risk"]), f"<small>{escape(heard)}</small>", digest


def _name(entry: Entry) -> str:
    return f"<b>{escape(entry['name'])}</b> {escape(entry['version'])}<br><small>{escape(entry['summary'])}</small>"


def _licence(entry: Entry) -> str:
    carried = f"<br><small>carries: {escape(', '.join(entry['bundled']))}</small>" if entry["bundled"] else ""
    return f"{escape(entry['licence'])}{carried}"


def _dot(category: str) -> str:
    return f'<span class=dot style="background:{_COLOURS[category]}"></span>'
