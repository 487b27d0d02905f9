"""A small library is compiled once for each version of its sources, and what the compiler says is passed on."""

import ctypes

import pytest

from hami_plugin.simulation.c_compiler import BuildError, CSources, build


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "native"
    folder.mkdir()
    return CSources(library="libanswer.so.1", folder=folder)


def write(source, answer):
    text = f'__attribute__((visibility("default"))) int answer(void) {{ return {answer}; }}\n'
    (source.folder / "answer.c").write_text(text, encoding="ascii")


def test_a_library_answers_as_its_sources_say(source, tmp_path):
    write(source, 42)

    path = build(source, tmp_path)

    assert path == tmp_path / "libanswer.so.1"
    assert ctypes.CDLL(str(path)).answer() == 42


def test_other_sources_make_another_library(source, tmp_path):
    write(source, 42)
    build(source, tmp_path / "first.so")
    write(source, 43)

    second = build(source, tmp_path / "second.so")

    assert ctypes.CDLL(str(second)).answer() == 43
    assert len(list((tmp_path / "cache/hami-plugin").iterdir())) == 2


def test_what_does_not_compile_is_told_in_the_compilers_words(source, tmp_path):
    (source.folder / "answer.c").write_text("int answer(void) { return nothing; }\n", encoding="ascii")

    with pytest.raises(BuildError, match="nothing"):
        build(source, tmp_path)


def test_without_a_compiler_the_error_says_what_to_install(source, tmp_path, monkeypatch):
    write(source, 42)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(BuildError, match="install gcc"):
        build(source, tmp_path)
