"""What ``efsmi`` does with cards and partitions (DRS), as a program over the simulated tool's notes. It is run, not
imported.

``cut.<card>`` has a card's partitions, as ``<slices>#<id>``, ``made.<card>`` how many there ever were, and
``used.<card>`` the ids of those in use. ``mode.<card>`` is what the tool has switched the card to: on, off, or another
word, which it prints. ``order.<card>`` is what becomes of the next call of a kind, as
``create:after``: it fails, or whoever calls dies (``create:die-after``). ``switch:leave``: no switch does anything.
"""

# Started for each call, it would take longer to import pathlib (or signal) than for all else.
# ruff: noqa: PTH103, PTH105, PTH110, PTH123
import fcntl
import os
import sys

SIGKILL = 9
TOTAL = 6
VIRTUAL = {"on": "DRS", "off": "Disable"}


def main(
    notes: str, named: dict[str, dict[str, str]], rows: dict[str, str], cut: list[str], arguments: list[str]
) -> None:
    """Of each card ``named`` has the names of its profiles by id, and ``rows`` what the table says of it.

    ``cut`` are the cards that are in DRS mode until they are switched.
    """
    os.makedirs(notes, exist_ok=True)
    with open(f"{notes}/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        modes = {card: " ".join(read(notes, "mode", card)) or ("on" if card in cut else "off") for card in rows}
        cards = {card: profiles for card, profiles in named.items() if modes[card] == "on"}
        match arguments:
            case []:
                sys.stdout.writelines(row.format(virtual=VIRTUAL.get(modes[c], modes[c])) for c, row in rows.items())
            case ["-i", card, "--drs", ("on" | "off") as mode] if card in named:
                switch(notes, card, mode)
            case ["-L"]:
                for card, profiles in cards.items():
                    order(notes, card, "list", "before")
                    listed(notes, card, profiles)
            case ["-i", card, "--drs", "--list-profile"] if card in cards:
                order(notes, card, "profiles", "before")
                shapes(notes, card, cards[card])
            case ["-i", card, "--drs", "--create-instance", profile] if profile in cards.get(card, {}):
                order(notes, card, "create", "before")
                create(notes, card, slices(cards[card][profile]))
                order(notes, card, "create", "after")
            case ["-i", card, "--drs", "--destroy-instance", number] if card in cards:
                order(notes, card, "destroy", "before")
                destroy(notes, card, number)
                order(notes, card, "destroy", "after")
            case _:
                sys.exit(f"Error: DRS is off, or the arguments are invalid: {' '.join(arguments)}")


def switch(notes: str, card: str, mode: str) -> None:
    order(notes, card, "switch", "before")
    if mode == "off" and read(notes, "cut", card):
        sys.exit("Error: there are instances")
    if "switch:leave" in read(notes, "order", card):
        return
    write(notes, "mode", card, [mode])
    order(notes, card, "switch", "after")


def shapes(notes: str, card: str, profiles: dict[str, str]) -> None:
    for number, name in profiles.items() if not os.path.exists(f"{notes}/no-profiles.{card}") else ():
        sys.stdout.write(f"| {card} {name} {number} {TOTAL // slices(name)} - - |\n")


def listed(notes: str, card: str, profiles: dict[str, str]) -> None:
    names = {slices(name): name for name in profiles.values()}
    for one in read(notes, "cut", card):
        count, _, number = one.partition("#")
        sys.stdout.write(f"| {card} {names[int(count)]} {number} {int(card):04x}{int(number):04x} |\n")


def create(notes: str, card: str, count: int) -> None:
    there = read(notes, "cut", card)
    if sum(int(one.partition("#")[0]) for one in there) + count > TOTAL:
        sys.exit("Error: insufficient resources")
    made = int((read(notes, "made", card) or ["0"])[0])
    write(notes, "cut", card, [*there, f"{count}#{made}"])
    write(notes, "made", card, [str(made + 1)])


def destroy(notes: str, card: str, number: str) -> None:
    there = read(notes, "cut", card)
    left = [one for one in there if one.partition("#")[2] != number]
    if left == there:
        sys.exit(f"Error: no instance {number}")
    if number in read(notes, "used", card):
        sys.exit("Error: device or resource busy")
    write(notes, "cut", card, left)


def order(notes: str, card: str, call: str, when: str) -> None:
    """Do to this call what was ordered, once."""
    waiting = read(notes, "order", card)
    for one in (f"{call}:{when}", f"{call}:die-{when}"):
        if one in waiting:
            write(notes, "order", card, [other for other in waiting if other != one])
            if "die" in one:
                os.kill(os.getppid(), SIGKILL)
            sys.exit(f"Error: {call} failed")


def slices(profile: str) -> int:
    return int(profile.partition("g")[0])


def read(notes: str, what: str, card: str) -> list[str]:
    try:
        with open(f"{notes}/{what}.{card}", encoding="utf-8") as file:
            return file.read().split()
    except FileNotFoundError:
        return []


def write(notes: str, what: str, card: str, words: list[str]) -> None:
    new = f"{notes}/.{what}.{card}"
    with open(new, "w", encoding="utf-8") as file:
        file.write(" ".join(words))
    os.replace(new, f"{notes}/{what}.{card}")
