"""What the audit concludes about a distribution, and what it says about it."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from docket_celery.run.events import Event, EventType
from examples.license_audit import ledger, report, risk, verdicts
from examples.license_audit.checks import check_events
from examples.license_audit.classification import classify
from examples.license_audit.inspection import describe
from examples.license_audit.measurement import measure
from examples.license_audit.nodes import is_rehearsed
from examples.license_audit.spdx import category, identifiers, recognise, strictest
from examples.license_audit.texts import recognise_text

MIT_TEXT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software ...
The above copyright notice and this permission notice shall be included in all copies or substantial portions."""
BSD2_TEXT = "Redistribution and use in source and binary forms, with or without modification, are permitted"
BSD3_TEXT = BSD2_TEXT + "\nNeither the name of the X may be used to endorse or promote products"
APACHE_TEXT = "                    Apache License\n              Version 2.0, January 2004"


def never() -> None:
    """No deadline."""


class Site:
    """A distribution on disk, as an installer leaves it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.info = root / "thing-1.0.dist-info"
        self.info.mkdir()
        self.headers = ["Metadata-Version: 2.4", "Name: thing", "Version: 1.0", "Summary: does things"]
        self.record: list[str] = []

    def add(self, name: str, content: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")
        return path

    def licence(self, text: str, name: str = "LICENSE") -> None:
        self.add(f"{self.info.name}/licenses/{name}", text)

    def install(self, *headers: str) -> str:
        (self.info / "METADATA").write_text("\n".join([*self.headers, *headers, "", ""]))
        (self.info / "RECORD").write_text("\n".join([*self.record, f"{self.info.name}/RECORD,,"]) + "\n")
        return str(self.info)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("MIT", {"MIT"}),
        ("The MIT License (MIT)", {"MIT"}),
        ("apache-2.0", {"Apache-2.0"}),
        ("Apache Software License", {"Apache-2.0"}),
        ("New BSD", {"BSD-3-Clause"}),
        ("BSD 2-Clause License", {"BSD-2-Clause"}),
        ("3-Clause BSD License", {"BSD-3-Clause"}),
        ("BSD License", {"BSD-2-Clause", "BSD-3-Clause"}),
        ("GNU Lesser General Public License v3 (LGPLv3)", {"LGPL-3.0"}),
        ("GNU General Public License v2 or later (GPLv2+)", {"GPL-2.0"}),
        ("Mozilla Public License 2.0 (MPL 2.0)", {"MPL-2.0"}),
        ("LGPL-3.0-only", {"LGPL-3.0"}),
        ("Dual License", set()),
    ],
)
def test_words_name_the_licences_that_people_mean_by_them(words: str, expected: set[str]) -> None:
    assert recognise(words) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", "permissive"),
        ("Apache-2.0 OR GPL-3.0-only", "permissive"),
        ("Apache-2.0 AND LGPL-2.1-or-later", "weak copyleft"),
        ("MIT AND (GPL-2.0-only OR BSD-3-Clause)", "permissive"),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", "strong copyleft"),
        ("LicenseRef-House-Rules", "unknown"),
        ("MIT OR", "unknown"),
        ("(MIT", "unknown"),
        ("MIT MIT", "unknown"),
    ],
)
def test_an_expression_asks_for_its_mildest_alternative_and_its_strictest_part(expression: str, expected: str) -> None:
    assert category(expression) == expected


def test_an_exception_is_no_licence_of_its_own() -> None:
    assert identifiers("(GPL-2.0-or-later WITH Classpath-exception-2.0) OR MIT") == {"GPL-2.0", "MIT"}
    assert strictest(["MIT", "MPL-2.0", "Apache-2.0"]) == "weak copyleft"
    assert strictest([]) == "unknown"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MIT_TEXT, {"MIT"}),
        (BSD2_TEXT, {"BSD-2-Clause"}),
        (BSD3_TEXT, {"BSD-3-Clause"}),
        (APACHE_TEXT + BSD3_TEXT, {"Apache-2.0", "BSD-3-Clause"}),
        ("GNU LESSER GENERAL PUBLIC LICENSE\n  Version 3, 29 June 2007", {"LGPL-3.0"}),
        ("GNU GENERAL PUBLIC LICENSE\n  Version 3, 29 June 2007", {"GPL-3.0"}),
        ("All good things come to those who wait.", set()),
    ],
)
def test_a_licence_is_recognised_by_its_wording(text: str, expected: set[str]) -> None:
    assert recognise_text(text) == expected


def test_an_expression_that_its_licence_file_bears_out_is_known(site: Site) -> None:
    site.licence(MIT_TEXT)
    found = classify(describe(site.install("License-Expression: MIT")))
    assert (found["standing"], found["licence"], found["category"]) == ("known", "MIT", "permissive")
    assert [said["witness"] for said in found["evidence"]] == ["expression", "file"]


def test_a_vague_family_is_made_precise_by_the_text(site: Site) -> None:
    site.licence(BSD3_TEXT)
    found = classify(describe(site.install("License: BSD", "Classifier: License :: OSI Approved :: BSD License")))
    assert (found["standing"], found["licence"]) == ("known", "BSD-3-Clause")


def test_a_family_without_a_text_stays_a_family(site: Site) -> None:
    found = classify(describe(site.install("Classifier: License :: OSI Approved :: BSD License")))
    assert (found["standing"], found["licence"]) == ("known", "BSD-2-Clause / BSD-3-Clause")
    assert found["category"] == "permissive"


def test_a_declaration_that_the_licence_file_contradicts_is_a_conflict(site: Site) -> None:
    site.licence("GNU GENERAL PUBLIC LICENSE Version 3, 29 June 2007")
    found = classify(describe(site.install("License-Expression: MIT")))
    assert found["standing"] == "conflicting"
    assert found["conflict"] == "declared as MIT, but its licence file is GPL-3.0"
    assert found["candidates"] == ["GPL-3.0", "MIT"]


def test_two_licences_without_a_word_on_how_they_combine_are_a_conflict(site: Site) -> None:
    site.licence(APACHE_TEXT + BSD3_TEXT)
    headers = ("Dual License", "BSD License", "Apache Software License")
    facts = describe(site.install(f"License: {headers[0]}", *(f"Classifier: License :: {h}" for h in headers[1:])))
    found = classify(facts)
    assert found["standing"] == "conflicting"
    assert "without saying how they combine" in found["conflict"]


def test_a_distribution_that_says_nothing_is_unknown(site: Site) -> None:
    found = classify(describe(site.install()))
    assert (found["standing"], found["licence"], found["category"]) == ("unknown", None, "unknown")


def test_licences_of_code_that_is_carried_along_are_told_apart(site: Site) -> None:
    site.licence(MIT_TEXT)
    site.add("thing/_vendor/other/LICENSE", APACHE_TEXT)
    found = classify(describe(site.install("License-Expression: MIT")))
    assert (found["standing"], found["licence"], found["bundled"]) == ("known", "MIT", ["Apache-2.0"])


def test_files_as_installed_are_verified_and_measured(site: Site) -> None:
    site.add("thing/__init__.py", "x = 1\n")
    site.add("thing/fast.so", b"\x7fELF" + bytes(96))
    (found, again) = (measure(site.install(), never) for _ in range(2))
    assert found == again
    assert (found["verified"], found["mismatches"], found["missing"]) == (2, 0, 0)
    assert (found["native"], found["native_bytes"]) == (1, 100)
    assert found["files"] == 3


def test_changed_and_missing_files_are_named(site: Site) -> None:
    changed, lost = site.add("thing/changed.py", "before"), site.add("thing/lost.py", "here")
    site.add("thing/__pycache__/changed.pyc", "cache").unlink()
    where = site.install()
    changed.write_text("after!")
    lost.unlink()
    found = measure(where, never)
    assert (found["mismatches"], found["missing"]) == (1, 1)
    assert found["deviating"] == ["changed: thing/changed.py", "missing: thing/lost.py"]


def test_measuring_ends_at_its_deadline(site: Site) -> None:
    site.add("thing/a.py", "a")

    def over() -> None:
        raise TimeoutError("over")

    with pytest.raises(TimeoutError, match="over"):
        measure(site.install(), over)


def test_a_distribution_that_was_removed_meanwhile_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.dist-info"):
        describe(str(tmp_path / "gone.dist-info"))


def test_what_is_wrong_adds_up_and_is_said(site: Site) -> None:
    site.add("thing/changed.py", "before").write_text("after")
    where = site.install("License-Expression: GPL-3.0-only")
    facts = describe(where)
    found = risk.assess(facts, classify(facts), measure(where, never), "strong copyleft")
    assert found["points"] == 91
    assert [points for points, _ in found["reasons"]] == [50, 31, 10]


def test_a_clean_permissive_distribution_has_no_risk(site: Site) -> None:
    site.licence(MIT_TEXT)
    where = site.install("License-Expression: MIT")
    facts = describe(where)
    assert risk.assess(facts, classify(facts), measure(where, never), "permissive") == {"points": 0, "reasons": []}


def question(*candidates: str) -> Mapping[str, Any]:
    return {"candidates": list(candidates)}


def test_the_policy_accepts_the_unknown_as_unknown() -> None:
    assert verdicts.by_policy(question())["licence"] == "UNKNOWN (accepted by policy)"
    assert verdicts.by_policy(question())["category"] == "unknown"


def test_the_policy_reads_a_conflict_strictly() -> None:
    mild, strict = verdicts.by_policy(question("Apache-2.0", "MIT")), verdicts.by_policy(question("GPL-3.0", "MIT"))
    assert (mild["licence"], mild["accept"]) == ("Apache-2.0 AND MIT", True)
    assert (strict["category"], strict["accept"]) == ("strong copyleft", False)


def test_the_same_fifth_of_the_distributions_has_a_flaky_disk_each_time() -> None:
    names = [f"distribution-{number}" for number in range(500)]
    chosen = [name for name in names if is_rehearsed(name)]
    assert 50 < len(chosen) < 150
    assert chosen == [name for name in names if is_rehearsed(name)]


def test_an_unfinished_line_of_the_ledger_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    assert ledger.read(path) == []
    monkeypatch.setenv(ledger.VARIABLE, str(path))
    ledger.write({"kind": "begin"})
    with path.open("a") as file:
        file.write('{"kind": "beg')
    assert [entry["kind"] for entry in ledger.read(path)] == ["begin"]


def history(*kinds: tuple[EventType, int, str | None]) -> list[Event]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        Event(run_id="r", seq=seq, type=kind, step=step, at=at, node=node)
        for seq, (kind, step, node) in enumerate(kinds, start=1)
    ]


GOOD = (
    (EventType.RUN_STARTED, 1, None),
    (EventType.NODE_COMPLETED, 1, "a"),
    (EventType.STEP_COMMITTED, 1, None),
    (EventType.RUN_DONE, 1, None),
)


def test_a_history_without_holes_and_repetitions_balances() -> None:
    assert check_events(history(*GOOD), 4) == []


def test_a_hole_a_repetition_and_a_missing_end_are_found() -> None:
    twice = history(*GOOD[:3], *GOOD[1:3])
    assert check_events(twice, 5) == [
        "step 1 was committed 2 times",
        "a of step 1 was committed 2 times",
        "it was finished 0 times",
    ]
    assert check_events(history(*GOOD)[:3], 4)[0] == "its events are not numbered 1 to 4 without a hole"


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "name": "thing",
        "version": "1.0",
        "summary": "does <b>things</b>",
        "editable": False,
        "licence": "MIT",
        "category": "permissive",
        "standing": "known",
        "conflict": None,
        "evidence": [{"witness": "expression", "says": "MIT", "licences": ["MIT"]}],
        "bundled": [],
        "verdict": None,
        "risk": 0,
        "reasons": [],
        "recorded": True,
        "files": 2,
        "bytes": 1_500,
        "tree_sha256": "ab" * 32,
        "verified": 2,
        "mismatches": 0,
        "missing": 0,
        "deviating": [],
        "native": 0,
        "native_bytes": 0,
        "largest": [["thing/a.py", 1_000]],
        **changes,
    }


def test_the_report_keeps_everything_riskiest_first_and_escapes_what_others_wrote(tmp_path: Path) -> None:
    asked = entry(
        name="=cmd|evil",
        category="unknown",
        licence="UNKNOWN (accepted by policy)",
        standing="unknown",
        conflict="says nothing",
        risk=45,
        reasons=[[45, "nobody <i>can</i> say"]],
        verdict={"licence": "UNKNOWN (accepted by policy)", "category": "unknown", "accept": True, "note": "n"},
        mismatches=1,
        deviating=["changed: <script>"],
    )
    page, table = report.write([entry(), asked], tmp_path / "out", {"environment": "/venv & more"})
    html = page.read_text()
    assert "<b>things</b>" not in html
    assert "<script>" not in html
    assert "/venv &amp; more" in html
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["'=cmd|evil", "thing"]
    assert [row["verdict"] for row in rows] == ["accepted", ""]


def test_an_entry_survives_the_way_through_json() -> None:
    assert json.loads(json.dumps(entry())) == entry()
    assert report.totals([entry(), entry(category="unknown")]) == {"permissive": (1, 1_500), "unknown": (1, 1_500)}
    assert [report.human(size) for size in (12, 1_500, 2_500_000, 3_000_000_000)] == [
        "12 B",
        "1.5 KB",
        "2.5 MB",
        "3.0 GB",
    ]
