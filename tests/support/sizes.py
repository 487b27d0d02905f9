"""How much the containers hold that can be reached from an object: whatever grows is found, listed or not."""

import gc
from asyncio import AbstractEventLoop
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, CoroutineType, FrameType, FunctionType, MethodType, ModuleType

CONTAINERS = (dict, list, set, frozenset, tuple, deque)
PASSED_OVER = (type, ModuleType, CodeType, FrameType, CoroutineType, BuiltinFunctionType, AbstractEventLoop, str, bytes)


def sizes(root: object, foreign: Callable[[object], bool] = lambda _one: False) -> Counter[str]:
    """Elements of all containers by where they hang: the class and the attribute, and ``[]`` for each level below.

    What is ``foreign`` is not looked into, nor are classes, modules, and what runs.
    """
    found: Counter[str] = Counter()
    seen = {id(root)}
    waiting: deque[tuple[object, str]] = deque([(root, type(root).__qualname__)])
    while waiting:
        one, place = waiting.popleft()
        if isinstance(one, CONTAINERS):
            found[place] += len(one)
        for child, where in _below(one, place):
            if id(child) not in seen and not isinstance(child, PASSED_OVER) and not foreign(child):
                seen.add(id(child))
                waiting.append((child, where))
    return found


def _below(one: object, place: str) -> Iterator[tuple[object, str]]:
    match one:
        case dict():
            for part in (*one.keys(), *one.values()):
                yield part, f"{place}[]"
        case list() | set() | frozenset() | tuple() | deque():
            for part in tuple(one):
                yield part, f"{place}[]"
        case FunctionType():
            for cell in one.__closure__ or ():
                yield from ((held, f"{one.__qualname__}()") for held in gc.get_referents(cell))
        case MethodType():
            yield one.__self__, place
        case partial():
            yield from ((part, f"{place}()") for part in (one.func, one.args, one.keywords))
        case _:
            named = {id(value): name for name, value in getattr(one, "__dict__", {}).items()}
            for part in (*getattr(one, "__dict__", {}).values(), *gc.get_referents(one)):
                if part is not getattr(one, "__dict__", None):
                    yield part, f"{type(one).__qualname__}.{named.get(id(part), '')}"
