"""A claim that the binding does not keep is found without any driver."""

from dataclasses import replace

import pytest

from tools.gpu_check.claims import load
from tools.gpu_check.findings import Bench, Findings, Trees, Verdict
from tools.gpu_check.layout import check_binding

MEMORY = load().structs["nvmlMemory_v2_t"]


def _differing(claims):
    findings = Findings()
    check_binding(Bench(findings=findings, claims=claims, trees=Trees()))
    return {check.name for check in findings.checks if check.verdict is Verdict.DIFFERS}


def test_the_binding_is_laid_out_as_the_headers_are():
    assert _differing(load()) == set()


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({**MEMORY, "size": 48}, "size of nvmlMemory_v2_t"),
        ({**MEMORY, "word": 2}, "version word of nvmlMemory_v2_t"),
        ({**MEMORY, "offsets": {**MEMORY["offsets"], "reserved": 12}}, "offsets in nvmlMemory_v2_t"),
    ],
)
def test_another_layout_is_a_difference(changed, found):
    claims = load()

    assert _differing(replace(claims, structs={**claims.structs, "nvmlMemory_v2_t": changed})) == {found}


def test_another_number_for_a_refusal_is_a_difference():
    claims = load()

    assert _differing(replace(claims, codes={**claims.codes, "TIMEOUT": 11})) == {"NVML_ERROR_TIMEOUT"}


def test_a_structure_that_the_binding_lacks_is_not_applicable():
    findings = Findings()
    claims = replace(load(), structs={"nvmlFromTheFuture_t": {"size": 8, "offsets": {}}}, codes={})

    check_binding(Bench(findings=findings, claims=claims, trees=Trees()))

    assert [check.verdict for check in findings.checks] == [Verdict.NOT_APPLICABLE]
