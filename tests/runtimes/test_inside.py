"""Reading a container's report."""

import base64

import pytest

from tests.runtimes.inside import Mount, parse

ENV = base64.b64encode(b"PATH=/bin\0TWO=a\nb=c\0").decode()
REPORT = f"""\
== env
{ENV}
== devices
character special file|c3|1f|640|0|44|yes|Operation not permitted|/dev/a|b
== mounts
31 30 0:5 /lib\\040x /mnt/a\\040b ro,nosuid shared:4 - ext4 /dev/vda rw
== groups
0 44
== files
aGk= /etc/a b
 /etc/empty
- /etc/missing
== end
"""


def test_a_report_is_read_whatever_the_paths_and_values():
    inside = parse(REPORT)

    assert inside.env == {"PATH": "/bin", "TWO": "a\nb=c"}
    node = inside.devices["/dev/a|b"]
    assert (node.block, node.major, node.minor, node.mode, node.gid) == (False, 195, 31, 0o640, 44)
    assert (node.reading, node.writing) == ("yes", "Operation not permitted")
    assert inside.mounts == {"/mnt/a b": Mount(source="/lib x", options=frozenset({"ro", "nosuid"}), filesystem="ext4")}
    assert inside.groups == {0, 44}
    assert inside.files == {"/etc/a b": b"hi", "/etc/empty": b""}


@pytest.mark.parametrize("length", [0, 40, len(REPORT) - 8])
def test_a_report_that_breaks_off_is_no_empty_container(length):
    with pytest.raises(ValueError, match="breaks off"):
        parse(REPORT[:length])


def test_beyond_a_bare_container_is_what_was_added_or_changed():
    bare = parse(REPORT)
    more = parse(REPORT.replace(ENV, base64.b64encode(b"PATH=/sbin\0TWO=a\nb=c\0").decode()).replace("|640|", "|600|"))

    added = more.beyond(bare)

    assert added.env == {"PATH": "/sbin"}
    assert set(added.devices) == {"/dev/a|b"}
    assert added.mounts == {}
    assert bare.beyond(bare).devices == {}
