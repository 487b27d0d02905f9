"""The Go modules that the real node is built from: how they are pinned, and what a machine must have."""

import re
from pathlib import Path

import pytest

from tests.realnode import modules, pin, release, versions
from tests.realnode.commands import commands
from tests.realnode.modules import CONTAINERD, KUBERNETES, RUNC, Product
from tests.realnode.versions import DEBIANS, Kubernetes
from tools.debian.commands import LackingError

ALL = [(product, minor) for product in (KUBERNETES, CONTAINERD, RUNC) for minor in product.minors()]
NAMES = [f"{product.name}-{minor}" for product, minor in ALL]
UPSTREAM = """\
module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
	k8s.io/api v0.0.0
	k8s.io/utils v0.0.0-20260626114624-be93311217bd
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
"""


@pytest.mark.parametrize(("product", "minor"), ALL, ids=NAMES)
def test_a_pinned_product_has_the_sums_of_its_sources(product: Product, minor: str) -> None:
    pinned = product.pinned(minor)

    assert pinned.version.startswith(f"v{minor}.")
    sums = (pinned.folder / "go.sum").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(product.path)} {re.escape(pinned.version)} h1:\S+=$", sums, re.MULTILINE)


@pytest.mark.parametrize("minor", KUBERNETES.minors())
def test_each_library_of_kubernetes_is_of_its_own_version(minor: str) -> None:
    pinned = KUBERNETES.pinned(minor)

    text = (pinned.folder / "go.mod").read_text(encoding="utf-8")

    replaced = re.findall(r"^\t(k8s\.io/\S+) => (\S+) (\S+)$", text, re.MULTILINE)
    assert len(replaced) > 30
    assert {(name, "v0" + pinned.version[2:]) for name, _, _ in replaced} == {(name, v) for _, name, v in replaced}
    required = re.findall(r"^\t(k8s\.io/\S+) v0\.0\.0( |$)", text, re.MULTILINE)
    assert {name for name, _ in required} <= {name for name, _, _ in replaced}


def test_a_description_replaces_what_upstream_takes_from_folders_and_nothing_else() -> None:
    made = pin.description(KUBERNETES, "v1.37.2", UPSTREAM)

    assert "go 1.26.0\n" in made
    assert "godebug default=go1.26\n" in made
    assert "require k8s.io/kubernetes v1.37.2\n" in made
    assert re.findall(r"=> (.+)", made) == ["k8s.io/api v0.37.2", "k8s.io/kubelet v0.37.2"]
    assert re.findall(r"^\tk8s\.io/kubernetes/cmd/(.+)", made, re.MULTILINE) == sorted(KUBERNETES.commands)


def test_the_version_is_stamped_into_the_programs() -> None:
    how = KUBERNETES.pinned(KUBERNETES.minors()[-1])._how()

    assert re.search(r"-X k8s\.io/component-base/version\.gitVersion=v1\.\d+\.\d+ ", how[-1])
    assert re.search(r"-X k8s\.io/component-base/version\.gitMinor=\d+$", how[-1])


def test_a_program_with_parts_in_c_is_built_with_a_compiler_and_needs_no_library(path: Path) -> None:
    stands_for_go(
        path, says="go1.99", then='echo $CGO_ENABLED $CGO_CFLAGS $CGO_LDFLAGS >>"${0}s"; mkdir -p "${7%/*}"; exit 0'
    )
    (runc,) = (RUNC.pinned(minor) for minor in RUNC.minors())

    library = path / "tree/usr/lib/any/libseccomp.a"
    library.parent.mkdir(parents=True)
    library.touch()

    runc.kept_in(path / "cache", lambda _: None, path / "tree")

    asked = (path / "asked").read_text().splitlines()[-1]
    assert asked.endswith(" github.com/opencontainers/runc")
    assert "-extldflags -static" in asked
    assert (path / "gos").read_text().splitlines()[-1] == f"1 -I{path}/tree/usr/include -L{library.parent} -lseccomp"


def test_the_newest_kubernetes_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(versions.VARIABLE, raising=False)

    assert versions.chosen().name == KUBERNETES.minors()[-1]


def test_debians_kubernetes_is_chosen_by_its_minor_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.VARIABLE, "1.20")

    assert versions.chosen() == DEBIANS


@pytest.mark.parametrize("minor", KUBERNETES.minors())
def test_a_pinned_kubernetes_is_chosen_by_its_minor_version(monkeypatch: pytest.MonkeyPatch, minor: str) -> None:
    monkeypatch.setenv(versions.VARIABLE, minor)

    assert versions.chosen() == Kubernetes(version=KUBERNETES.pinned(minor).version)
    assert not versions.chosen().is_debians


def test_an_older_kubernetes_is_chosen_with_the_gates_that_newer_ones_have_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.VARIABLE, "1.34-gates")

    chosen = versions.chosen()

    assert (chosen.minor, chosen.as_new_as) == (34, versions.CONSUMABLE)
    told = f"--feature-gates={','.join(f'{gate}=true' for gate in versions.GATES)}"
    servers = {name for name, command in commands(chosen).items() if told in command}
    assert servers == {"apiserver", "scheduler", "controllers", "kubelet"}
    values = release.switched_on({"scheduler": {"kubeScheduler": {"extraArgs": ["--v=2"]}}}, chosen)
    assert values["scheduler"]["kubeScheduler"]["extraArgs"] == ["--v=2", told]


def test_without_that_choice_nothing_is_switched() -> None:
    (plain,) = (one for one in versions.known().values() if one.name == "1.34")

    assert plain.as_new_as == 34
    assert not [argument for command in commands(plain).values() for argument in command if "feature-gates" in argument]
    assert release.switched_on({"scheduler": {}}, plain) == {"scheduler": {}}


def test_an_unknown_kubernetes_is_refused_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.VARIABLE, "1.19")

    with pytest.raises(LackingError, match=r"KUBERNETES=1\.19 is not known; there are 1\.20, 1\.\d+.* \(try: .*pin"):
        versions.chosen()


def stands_for_go(folder: Path, *, says: str, then: str = "exit 0") -> None:
    """A program ``go`` that says which version it is, and notes what else it is asked."""
    program = folder / "go"
    program.write_text(f'#!/bin/sh\n[ "$1" = env ] && echo {says} && exit\necho "$@" >>{folder}/asked\n{then}\n')
    program.chmod(0o755)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder where Go may be found."""
    monkeypatch.setattr(modules, "GO_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def newest() -> modules.Pinned:
    return KUBERNETES.pinned(KUBERNETES.minors()[-1])


def test_a_machine_without_go_is_told_in_one_line_which_one_it_lacks(path: Path, newest: modules.Pinned) -> None:
    with pytest.raises(
        LackingError, match=r"^kubernetes v1\S+ is built from Go modules, which needs Go 1\.\d+.*none"
    ) as e:
        newest.kept_in(path / "cache", lambda _: None)

    assert "\n" not in str(e.value)


def test_an_older_go_is_refused_with_its_version(path: Path, newest: modules.Pinned) -> None:
    stands_for_go(path, says="go1.9.7")

    with pytest.raises(LackingError, match=r"go is go1\.9\.7 \(try: install a newer one"):
        newest.kept_in(path / "cache", lambda _: None)


def test_a_proxy_out_of_reach_is_told_with_the_setting_that_names_another(path: Path, newest: modules.Pinned) -> None:
    stands_for_go(path, says="go1.99", then="echo no route >&2; exit 1")

    with pytest.raises(LackingError, match=r"no route \(try: set GOPROXY"):
        newest.kept_in(path / "cache", lambda _: None)


def test_what_was_built_is_not_built_again_and_needs_no_go(path: Path, newest: modules.Pinned) -> None:
    # `build -tags T -ldflags L -o FILE PACKAGE`
    stands_for_go(path, says="go1.99", then='[ "$1" = build ] && mkdir -p "${7%/*}" && echo "$8" >"$7"; exit 0')
    told: list[str] = []

    built = newest.kept_in(path / "cache", told.append)
    (path / "go").unlink()
    again = newest.kept_in(path / "cache", told.append)

    assert again == built
    assert {file.name for file in built.iterdir()} == set(KUBERNETES.commands)
    assert [line.split()[0] for line in told[1:]] == list(KUBERNETES.commands)
    assert re.fullmatch(r"\d+ s, \d+ s of CPU", newest.took(path / "cache"))


def test_the_build_goes_on_where_it_broke_off_and_leaves_nothing_in_the_end(path: Path, newest: modules.Pinned) -> None:
    stands_for_go(
        path, says="go1.99", then='[ "$1" = build ] && echo full >&2 && exit 1; touch "$GOCACHE/kept"; exit 0'
    )
    cache = path / "cache"
    (cache / "go" / "cache").mkdir(parents=True)

    with pytest.raises(LackingError, match="full"):
        newest.kept_in(cache, lambda _: None)

    assert (cache / "go" / "cache" / "kept").exists()
    modules.clear(cache)
    assert not (cache / "go" / "cache").exists()


def test_another_recipe_is_another_mark(tmp_path: Path, newest: modules.Pinned) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in newest.folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    same = modules.Pinned(product=KUBERNETES, folder=other)
    assert same.recipe() == newest.recipe()

    (other / "go.sum").write_text(f"{(other / 'go.sum').read_text()}\n")

    assert same.recipe() != newest.recipe()


@pytest.mark.parametrize("kubernetes", versions.known().values(), ids=versions.known())
def test_only_debians_has_the_flags_that_newer_ones_refuse(kubernetes: Kubernetes) -> None:
    given = {argument.partition("=")[0] for command in commands(kubernetes).values() for argument in command}
    gone = {"--insecure-port", "--port", "--container-runtime", "--pod-infra-container-image"}

    assert (gone <= given) == kubernetes.is_debians
    assert bool(gone & given) == kubernetes.is_debians
