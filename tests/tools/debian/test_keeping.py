"""What is made once: by one process at a time, again when its recipe changes, and again after it broke off."""

import fcntl
import json
import threading

import pytest

from tools.debian.commands import LackingError
from tools.debian.keeping import once


@pytest.fixture
def made(tmp_path):
    """Call it with a recipe; it returns all recipes that something was made by so far."""
    recipes = []

    def call(recipe):
        once(tmp_path / "kept", recipe, lambda: recipes.append(recipe) or {"by": recipe}, wait_s=20)
        return recipes

    return call


def test_what_is_there_is_not_made_again(made):
    made("flour")

    assert made("flour") == ["flour"]


def test_another_recipe_makes_it_again(made):
    made("flour")

    assert made("rye") == ["flour", "rye"]


def test_what_was_found_stands_beside_the_recipe(made, tmp_path):
    made("flour")

    assert json.loads((tmp_path / "kept" / "complete.json").read_text()) == {"recipe": "flour", "by": "flour"}


def test_what_broke_off_is_made_again_also_by_the_recipe_before(made, tmp_path):
    made("flour")

    with pytest.raises(ZeroDivisionError):
        once(tmp_path / "kept", "rye", lambda: {"never": 1 // 0}, wait_s=20)

    assert made("flour") == ["flour", "flour"]


def test_two_at_once_make_it_once(tmp_path):
    both, finds = threading.Barrier(2), []

    def make():
        try:
            both.wait(0.3)
        except threading.BrokenBarrierError:
            finds.append("alone")
        return {}

    threads = [threading.Thread(target=once, args=(tmp_path, "flour", make), kwargs={"wait_s": 20}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert finds == ["alone"]


def test_whoever_waits_too_long_is_told_for_what(tmp_path):
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        with pytest.raises(LackingError, match=r"lock is held by another installation for 0 s; wait for it"):
            once(tmp_path, "flour", dict, wait_s=0)
