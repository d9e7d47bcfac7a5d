"""A report as JUnit XML, which every CI server shows: a test case for each crash.

CI servers follow a test case from run to run by its name. So where calls run side by side, and one or the other is
recorded first, a name says no more than the point; what was in the commit stands in the output.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree

from agentor.crashtest.report import Case, Report

# What XML 1.0 cannot hold, escaped or not.
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: Report) -> str:
    """One `testsuite`; an unsafe case is a failure, notes are its output."""
    suite = ElementTree.Element(
        "testsuite",
        name="agentor crashtest",
        tests=str(len(report.cases)),
        failures=str(sum(bool(case.problems) for case in report.cases)),
        errors="0",
        skipped="0",
        time=f"{sum(case.seconds for case in report.cases):.3f}",
    )
    for case in report.cases:
        _add(suite, report, case)
    return _text(suite)


def error_to_junit(target: str, error: str) -> str:
    """Of a crash test that could not be made: one test case, which is an error."""
    counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0"}
    suite = ElementTree.Element("testsuite", counts, name="agentor crashtest")
    test = ElementTree.SubElement(
        suite, "testcase", classname=_clean(target), name="without a crash"
    )
    ElementTree.SubElement(test, "error", message=_clean(error))
    return _text(suite)


def _text(suite: ElementTree.Element) -> str:
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, report: Report, case: Case) -> None:
    test = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_clean(report.target),
        name=_clean(case.points if report.parallel else case.name),
        time=f"{case.seconds:.3f}",
    )
    if case.problems:
        failure = ElementTree.SubElement(test, "failure", message=_clean(case.problems[0]))
        failure.text = _clean("\n".join([*case.problems, *_mends(report, case)]))
    told = [*(f"in doubt: {tool}" for tool in case.in_doubt), *case.notes]
    if report.parallel:
        told.insert(0, f"killed {case.name}" if case.killed else case.name)
    if told:
        ElementTree.SubElement(test, "system-out").text = _clean("\n".join(told))


def _mends(report: Report, case: Case) -> list[str]:
    harmed = {*case.never_ran, *(again.tool for again in case.again if again.harmful)}
    return [f"{tool.name}: {tool.mend}" for tool in report.tools if tool.name in harmed]


def _clean(text: str) -> str:
    return _NOT_XML.sub("?", text)
