"""Which names does the grammar allow, and what do annotations make of them?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdi.errors import InvalidNameError
from cdi.names import (
    Kind,
    QualifiedName,
    annotated,
    annotation_key,
    annotation_value,
    class_problem,
    device_problem,
    vendor_problem,
)
from tests.support.specs import kinds, names

qualified = st.builds(QualifiedName, kind=kinds, device=names)


@given(qualified)
def test_a_name_reads_as_it_is_written(name):
    assert QualifiedName.parse(str(name)) == name
    assert Kind.parse(str(name.kind)).device(name.device) == name


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "not of the form vendor/class=device"),
        ("gpu0", "not of the form vendor/class=device"),
        ("/dev/gpu=0", "not of the form vendor/class=device"),
        ("example.com/gpu=", "not of the form vendor/class=device"),
        ("example.com=0", "not of the form vendor/class"),
        ("/gpu=0", "not of the form vendor/class=device"),
        ("example.com/=0", "not of the form vendor/class"),
        ("_example/gpu=0", 'vendor "_example" must start with a letter'),
        ("example./gpu=0", 'vendor "example." must end with a letter or digit'),
        ("exämple.com/gpu=0", "has 'ä'; allowed are letters"),
        ("example.com/g:pu=0", "class \"g:pu\" has ':'"),
        ("example.com/1gpu=0", 'class "1gpu" must start with a letter'),
        (f"example.com/{'g' * 64}=0", "has 64 characters, 63 are allowed"),
        (f"{'v' * 254}/gpu=0", "has 254 characters, 253 are allowed"),
        ("example.com/g=0", 'class "g" must have two characters or more'),
        ("e/gpu=0", 'vendor "e" must have two characters or more'),
        ("example.com/gpu=-1", 'device name "-1" must start with a letter or digit'),
        ("example.com/gpu=0=1", "has '='; allowed are letters"),
        ("example.com/gpu=a\n", "must end with a letter or digit"),
        ("example.com/gpu=٣", "must start with a letter or digit"),
    ],
)
def test_a_name_that_is_not_allowed_says_which_part_and_why(text, wrong):
    with pytest.raises(InvalidNameError) as refused:
        QualifiedName.parse(text)

    assert wrong in str(refused.value)


def test_all_that_is_wrong_with_a_kind_is_said_at_once():
    with pytest.raises(InvalidNameError, match=r'vendor "-" must start with a letter, class "" is empty'):
        Kind(vendor="-", cls="")


@given(st.text(max_size=6))
def test_what_is_refused_cannot_be_built_and_what_is_not_can(text):
    for problem, build in (
        (vendor_problem, lambda: Kind(vendor=text, cls="gpu")),
        (class_problem, lambda: Kind(vendor="example.com", cls=text)),
        (device_problem, lambda: Kind.parse("example.com/gpu").device(text)),
    ):
        if problem(text) is None:
            assert text in str(build())
        else:
            with pytest.raises(InvalidNameError):
                build()


@given(st.lists(qualified, min_size=1, unique=True))
def test_an_annotation_asks_for_what_was_put_into_it(wanted):
    key = annotation_key("example.gpu", "pod/3")

    assert key == "cdi.k8s.io/example.gpu_pod_3"
    assert annotated({key: annotation_value(wanted), "other": "x"}) == tuple(wanted)


def test_several_annotations_add_up_by_key_and_a_device_counts_once():
    found = annotated({"p.io/b": "ex.com/gpu=2,ex.com/gpu=0", "p.io/a": "ex.com/gpu=0", "q/c": "?"}, prefix="p.io")

    assert [str(name) for name in found] == ["ex.com/gpu=0", "ex.com/gpu=2"]


def test_a_prefix_of_ones_own_has_its_slash_or_not():
    assert annotation_key("gpu", "0", prefix="x.io") == annotation_key("gpu", "0", prefix="x.io/") == "x.io/gpu_0"


@pytest.mark.parametrize(
    ("plugin", "request_id", "wrong"),
    [
        ("", "1", "needs a plugin and a request"),
        ("gpu", "", "needs a plugin and a request"),
        ("gpu", "x" * 60, "has 64 characters, 63 are allowed; use a shorter plugin name or request"),
        ("gpu", "a b", "must be letters, digits"),
        ("-gpu", "a", "with a letter or digit at both ends"),
        ("gpu", "a\n", "with a letter or digit at both ends"),
    ],
)
def test_a_key_that_kubernetes_would_refuse_is_refused(plugin, request_id, wrong):
    with pytest.raises(InvalidNameError, match=wrong):
        annotation_key(plugin, request_id)


def test_a_key_has_63_characters_at_most():
    assert annotation_key("gpu", "x" * 59).endswith("x")


def test_a_value_that_is_no_list_of_devices_names_its_key():
    with pytest.raises(InvalidNameError, match=r'annotation cdi\.k8s\.io/x: device "gpu0" is not of the form'):
        annotated({"cdi.k8s.io/x": "example.com/gpu=0,gpu0"})
