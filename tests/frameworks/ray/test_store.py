"""Meeting of ranks through Ray's store, which a dict stands in for: others/test_ray.py has a real one."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types
from typing import Any

import pytest

from support.worlds import in_threads

FILE = pathlib.Path(__file__).parents[3] / "frameworks" / "ray" / "store.py"


class Ray:
    """The part of Ray that store.py uses."""

    def __init__(self) -> None:
        self.namespace = "n"
        self.kept: dict[str, str] = {}

    def put(self, key: str, value: str, namespace: bytes, overwrite: bool = True) -> None:
        self.kept[key] = value if overwrite else self.kept.get(key, value)

    def get(self, key: str, namespace: bytes) -> bytes | None:
        return self.kept[key].encode() if key in self.kept else None

    def delete(self, key: str, del_by_prefix: bool, namespace: bytes) -> None:
        assert del_by_prefix
        for each in [each for each in self.kept if each.startswith(key)]:
            del self.kept[each]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made, experimental, module = Ray(), types.ModuleType("ray.experimental"), types.ModuleType("ray")
    experimental.internal_kv = types.SimpleNamespace(  # type: ignore[attr-defined]
        _internal_kv_put=made.put, _internal_kv_get=made.get, _internal_kv_del=made.delete
    )
    module.get_runtime_context = lambda: made  # type: ignore[attr-defined]
    module.util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setitem(sys.modules, "ray.experimental", experimental)
    return made


@pytest.fixture
def store(ray: Ray) -> Any:
    """The module, without the rest of hocket.ray, which needs more of Ray."""
    spec = importlib.util.spec_from_file_location("ray_store", FILE)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_names_of_groups_and_namespaces_are_kept_apart(ray: Ray, store: Any) -> None:
    places = [("a", "b/c"), ("a/b", "c"), ("a", "b"), ("a/b/c", ""), ("a", "b%2Fc"), ("a%2Fb", "c"), ("", "a/b/c")]
    made = []
    for ray.namespace, group in places:
        made.append(store.RayStore(group))
        made[-1].set("note", repr(places[len(made) - 1]))
    for i, each in enumerate(made):
        found = [other.get("note") for other in made]
        assert found == [None if j < i else repr(place).encode() for j, place in enumerate(places)]
        each.clear()
    assert ray.kept == {}


def test_a_group_meets_while_another_is_met(ray: Ray, store: Any) -> None:
    """When g is there, its rank 0 removes its note; rank 0 of g/x waits still."""

    def member(group: str, rank: int) -> None:
        with store.join(group, rank, 2, 20, make_default=False) as comm:
            assert comm.allreduce(rank) == 1

    def late() -> None:
        in_threads(lambda: member("g", 0), lambda: member("g", 1))
        member("g/x", 1)

    in_threads(lambda: member("g/x", 0), late)
    assert ray.kept == {}


def test_the_first_that_writes_a_key_wins(ray: Ray, store: Any) -> None:
    one, other = store.RayStore("g"), store.RayStore("g")
    assert [one.first("key", "a"), other.first("key", "b"), other.get("key")] == [b"a"] * 3
