"""The list of mutants is of the code as it stands: each text is found exactly once, each test that
has to notice exists, and no section of the invariants goes without. That they are caught is for
``make mutants``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mutants.mutation import ROOT, SECTIONS, Mutation, RottenError, mutations

LISTED = mutations()


@pytest.mark.parametrize("mutation", LISTED, ids=lambda mutation: mutation.name)
def test_a_mutation_applies_once_and_its_tests_exist(mutation: Mutation) -> None:
    mutation.check(ROOT)


def test_every_section_of_the_invariants_has_a_mutation_and_there_are_enough() -> None:
    assert {each.section for each in LISTED} == set(SECTIONS)
    assert len(LISTED) >= 25
    assert any(each.native for each in LISTED) and not all(each.native for each in LISTED)


@pytest.mark.parametrize(
    "change",
    [
        {"before": "a text that stands nowhere"},
        {"before": "\n"},
        {"after": LISTED[0].before},
        {"file": "radix/no_such_module.py"},
        {"invariant": "I99"},
        {"tests": ()},
        {"tests": ("tests/unit/test_no_such_file.py::test_nothing",)},
        {"tests": (LISTED[0].tests[0].partition("::")[0] + "::test_no_such_test",)},
    ],
    ids=str,
)
def test_what_has_rotted_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(RottenError):
        replace(LISTED[0], **change).check(ROOT)
