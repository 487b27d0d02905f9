"""How the tests ask Helm: once for the same question, and again after its process has ended."""

import pytest

from tests.charts import helm


@pytest.mark.full
def test_helms_process_is_started_again_once_it_has_ended():
    assert helm.lint() == []

    helm._kept().close()

    assert helm.lint() == []


def test_whoever_changes_a_release_changes_no_others():
    first, before = helm.rendered(), sorted(helm.rendered().objects)

    first.documents[0].clear()
    first.objects.clear()

    assert sorted(helm.rendered().objects) == before
    assert all(helm.rendered().documents)
