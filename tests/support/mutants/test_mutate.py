"""The mutants that `make mutants` tries: each is one change that the language takes, and a seed decides which."""

from __future__ import annotations

import ast
import random
from typing import Any

from support.mutants import compiled, mutate

PYTHON = '''
"""A module."""
LIMIT = 100
def cut(items: list[int], last: int = 1) -> list[int]:
    """Not more than 3."""
    if len(items) > LIMIT and not last:
        raise ValueError(f"at most {LIMIT + 1} items")
    total = min(items) + 7
    items[0] = total
    print("cut 3 of", total - 1)
    return items[:last] if total % 2 else []
class Each:
    def __repr__(self) -> str:
        return "é" * 3
'''
CYTHON = '''
cdef int LIMIT = 3
cdef int least(int a, int b) nogil except -1:
    """a < b."""
    cdef int n = a + 1  # not 2
    if a < b and n != 0: return <int>n
    return b
'''
C = """
#define LIMIT 3
static inline int least(const struct pair *p, int n) {
    /* a < 3 */
    return p->a < p->b && n == 0 ? p->a
         : n - 12;  // 4
}
"""


def drawn(module: Any, seed: int) -> list[mutate.Mutant]:
    if module is mutate:
        return mutate.mutants(PYTHON, random.Random(seed), lambda line, statement, in_function: True)
    return compiled.mutants(module, CYTHON if module.endswith("pyx") else C, random.Random(seed))


def all_drawn(module: Any) -> set[tuple[int, str]]:
    """By many seeds."""
    return {(each.line, each.new) for seed in range(50) for each in drawn(module, seed)}


def test_a_mutant_of_python_is_another_program() -> None:
    whole = ast.dump(ast.parse(PYTHON))
    for seed in range(50):
        for each in drawn(mutate, seed):
            assert ast.dump(ast.parse(each.text(PYTHON))) != whole, each


def test_what_is_changed() -> None:
    """Neither docstrings nor annotations, texts, or what is told to people."""
    found = all_drawn(mutate)
    assert {line for line, _ in found} == {3, 4, 6, 7, 8, 9, 11}
    assert {(3, "200"), (3, "50"), (4, "2"), (4, "0"), (7, "pass"), (9, "pass"), (11, "None")} <= found
    assert {(6, "(len(items) >= LIMIT)"), (6, "(len(items) > LIMIT or not last)"), (6, "(last)")} <= found
    assert {(8, "(max(items))"), (8, "(min(items) - 7)"), (11, "(items[1:last])"), (11, "(total // 2)")} <= found


def test_what_is_changed_of_cython_and_c() -> None:
    cython = {(5, "-"), (5, "2"), (5, "0"), (6, "<="), (6, ">="), (6, "or"), (6, "=="), (6, "1")}
    assert all_drawn("kernels/any.pyx") == cython
    c = {(5, "<="), (5, ">="), (5, "||"), (5, "!="), (5, "1"), (6, "+"), (6, "13"), (6, "11")}
    assert all_drawn("kernels/any.h") == c


def test_the_seed_decides() -> None:
    for module in (mutate, "any.pyx", "any.h"):
        assert drawn(module, 1) == drawn(module, 1)
        assert any(drawn(module, 1) != drawn(module, seed) for seed in range(2, 9))


def test_only_what_is_wanted() -> None:
    """By line, the line of its statement, and whether a function runs it."""
    chosen = mutate.mutants(PYTHON, random.Random(1), lambda line, statement, in_function: not in_function)
    assert {each.line for each in chosen} == {3, 4}


def test_a_header_is_compiled_into_all_whose_c_includes_it() -> None:
    assert compiled.sources("frameworks/torch/calls/quick.pyx") == ["src/hocket/torch/calls/quick.pyx"]
    assert compiled.sources("transports/shm/send.h") == ["src/hocket/transports/shm/channels.pyx"]
    by_another = compiled.sources("kernels/cpu/codec_pack.h")
    assert by_another == ["src/hocket/kernels/cpu/elias.pyx", "src/hocket/kernels/cpu/reduce.pyx"]
    assert compiled.sources("frameworks/xla/serving.h") == []
