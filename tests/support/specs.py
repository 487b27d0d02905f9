"""Any spec that the model can build, and some small ones."""

from hypothesis import strategies as st

from cdi.names import Kind
from cdi.spec import HOOK_NAMES, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, Spec, SpecDevice

UINT32 = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
words = st.one_of(
    texts, st.sampled_from(["yes", "NO", "null", "~", "1e3", "0x1f", "- a", "a: b", "#", "a #b", "''", "a:"])
)
paths = words.map(lambda text: f"/{text}")
names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,12}[A-Za-z0-9])?", fullmatch=True)
variables = st.tuples(texts.filter(lambda name: name and "=" not in name), words)
kinds = st.builds(
    Kind,
    vendor=st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,12}[A-Za-z0-9]", fullmatch=True),
    cls=st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,5}[A-Za-z0-9]", fullmatch=True),
)
nodes = st.builds(
    DeviceNode,
    path=paths,
    host_path=st.just("") | paths,
    permissions=st.sampled_from(["", "r", "rw", "mrw"]),
    type=st.sampled_from(["", "b", "c", "u", "p"]),
    major=st.none() | st.integers(0, 2**63 - 1),
    minor=st.none() | st.integers(0, 2**63 - 1),
    file_mode=st.none() | st.integers(0, 0o7777),
    uid=st.none() | UINT32,
    gid=st.none() | UINT32,
)
options = st.lists(words.filter(lambda device_type: device_type not in ("", "ro", "rw")), max_size=3).map(tuple)


def mounts_of(types, options):
    return st.builds(
        Mount,
        host_path=paths,
        container_path=paths,
        read_only=st.booleans(),
        options=options,
        type=st.sampled_from(types),
    )


binds = st.sampled_from(["bind", "rbind"])
mounts = mounts_of(["", "bind"], st.builds(lambda some, bind: (*some, bind), options, binds)) | mounts_of(
    ["tmpfs"], options
)
hooks = st.builds(
    Hook,
    name=st.sampled_from(HOOK_NAMES),
    path=paths,
    args=st.lists(words, max_size=3).map(tuple),
    env=st.lists(variables.map("=".join), max_size=2).map(tuple),
    timeout_s=st.none() | st.integers(1, 2**32 - 1),
)
rdt = st.builds(
    IntelRdt,
    clos_id=st.sampled_from(["", "/", "gpu pods"]),
    l3_cache_schema=words,
    mem_bw_schema=words,
    enable_cmt=st.booleans(),
    enable_mbm=st.booleans(),
)
edits = st.builds(
    ContainerEdits,
    env=st.lists(variables, max_size=3).map(dict),
    device_nodes=st.lists(nodes, max_size=2).map(tuple),
    mounts=st.lists(mounts, max_size=2).map(tuple),
    hooks=st.lists(hooks, max_size=1).map(tuple),
    additional_gids=st.just(()) | st.lists(UINT32, max_size=2).map(tuple),
    intel_rdt=st.none() | rdt,
)
annotations = st.just({}) | st.dictionaries(
    st.sampled_from(["slot", "Example.com/model", "a.b-c_d"]), words, max_size=2
)
devices = st.builds(
    SpecDevice,
    name=names,
    edits=edits.filter(lambda found: found != ContainerEdits()),
    annotations=annotations,
)
specs = st.builds(
    Spec,
    kind=kinds,
    devices=st.lists(devices, min_size=1, max_size=3, unique_by=lambda device: device.name).map(tuple),
    edits=st.just(ContainerEdits()) | edits,
    annotations=annotations,
)


def spec(*names, kind="example.com/gpu", env=None, **common):
    """A spec whose devices say their name in a variable; ``env`` and other edits are those of all of them."""
    return Spec(
        kind=Kind.parse(kind),
        edits=ContainerEdits(env=env or {}, **common),
        devices=tuple(SpecDevice(name=name, edits=ContainerEdits(env={"GPU": name})) for name in names),
    )
