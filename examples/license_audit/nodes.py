"""The nodes of the audit: thin functions from committed fields to writes. The thinking is in the modules they call.

A node may be executed again after a crash, so each only reads the disk and returns values; the ledger line beside it is
there to count exactly such repetitions.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from docket_celery import Interrupt, NodeContext
from examples.license_audit import classification as licences
from examples.license_audit import inspection, ledger, measurement, risk

REHEARSED_SHARE: Final = 5
"""One distribution in this many has a flaky disk when faults are rehearsed."""
VERDICT: Final = {
    "type": "object",
    "properties": {
        "licence": {"type": "string", "minLength": 1},
        "category": {"enum": ["permissive", "weak copyleft", "strong copyleft", "proprietary", "unknown"]},
        "accept": {"type": "boolean"},
        "note": {"type": "string"},
    },
    "required": ["licence", "category", "accept"],
    "additionalProperties": False,
}


def inspect(ctx: NodeContext, site: str) -> dict[str, Any]:
    """Reads the metadata."""
    with ledger.execution(ctx):
        facts = inspection.describe(site)
        return {"facts": facts, "log": f"inspect: {facts['name']} {facts['version']}"}


def classify(ctx: NodeContext, facts: dict[str, Any]) -> dict[str, Any]:
    """Decides the licence."""
    with ledger.execution(ctx):
        found = licences.classify(facts)
        said = found["licence"] or found["conflict"]
        return {"classification": found, "standing": found["standing"], "log": f"classify: {said}"}


def measure(ctx: NodeContext, distribution: str, site: str, rehearse_faults: bool) -> dict[str, Any]:
    """Hashes and verifies the files. Retried: disks can be flaky, and some are asked to be."""
    with ledger.execution(ctx):
        if rehearse_faults and ctx.attempt == 1 and is_rehearsed(distribution):
            raise OSError(f"rehearsed fault: the disk under {distribution} did not answer (it will, next time)")
        measured = measurement.measure(site, ctx.check)
        line = f"measure: {measured['files']} files, attempt {ctx.attempt}"
        return {"measurement": measured, "log": line}


def assess(
    ctx: NodeContext, facts: dict[str, Any], classification: dict[str, Any], measurement: dict[str, Any]
) -> dict[str, Any]:
    """Joins both halves into a first risk, before anybody was asked."""
    with ledger.execution(ctx):
        found = risk.assess(facts, classification, measurement, classification["category"])
        return {"risk": found, "log": f"assess: {found['points']} points"}


def verdict(
    ctx: NodeContext,
    facts: dict[str, Any],
    classification: dict[str, Any],
    risk: dict[str, Any],
    verdict: dict[str, Any] | None = None,
) -> Interrupt | dict[str, Any]:
    """Asks a human, and goes on when one has answered."""
    with ledger.execution(ctx, answered=verdict is not None):
        if verdict is None:
            question = {
                "distribution": facts["name"],
                "version": facts["version"],
                "standing": classification["standing"],
                "conflict": classification["conflict"],
                "candidates": classification["candidates"],
                "evidence": classification["evidence"],
                "risk": risk["points"],
            }
            return Interrupt("verdict", schema=VERDICT, payload=question)
        decided = "accepted" if verdict["accept"] else "rejected"
        return {"log": f"verdict: {decided} as {verdict['licence']}"}


def record(
    ctx: NodeContext,
    facts: dict[str, Any],
    classification: dict[str, Any],
    measurement: dict[str, Any],
    verdict: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Closes the file: the line of the report that this distribution gets."""
    with ledger.execution(ctx):
        licence = verdict["licence"] if verdict else classification["licence"]
        category = verdict["category"] if verdict else classification["category"]
        final = risk.assess(facts, classification, measurement, category)
        line = {
            "name": facts["name"],
            "version": facts["version"],
            "summary": facts["summary"],
            "editable": facts["editable"],
            "licence": licence,
            "category": category,
            "standing": classification["standing"],
            "conflict": classification["conflict"],
            "evidence": classification["evidence"],
            "bundled": classification["bundled"],
            "verdict": verdict,
            "risk": final["points"],
            "reasons": final["reasons"],
            **measurement,
        }
        return {"entry": line, "log": f"record: {licence}, {final['points']} points"}


def is_rehearsed(distribution: str) -> bool:
    """Whether this distribution is one of those whose first measurement fails in a rehearsal; always the same ones."""
    return hashlib.sha256(distribution.lower().encode()).digest()[0] % REHEARSED_SHARE == 0
