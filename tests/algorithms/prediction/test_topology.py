"""Topologies as text: what is understood, and why the rest is not."""

from __future__ import annotations

import pytest

from hocket.algorithms import Link, Topology, topology
from hocket.errors import ArgumentError


def test_topologies_as_text() -> None:
    assert topology("flat:latency=20us,bandwidth=1Gbit") == Topology(Link(20e-6, 125e6))
    found = topology("hosts:4x8,link=1.5ms/10kbit,inside=300ns/10GB/shared,overhead=2us,reduce=5GB")
    assert found == Topology(
        Link(1.5e-3, 1250.0), 8, 4, inside=Link(3e-7, 1e10), shared=True, overhead=2e-6, reduction=1 / 5e9
    )
    assert topology("racks:16x32x8,inside=1us/1GB,link=1us/1GB,uplink=2us/3TB") == Topology(
        Link(1e-6, 1e9), 8, 32, 16, Link(1e-6, 1e9), Link(2e-6, 3e12)
    )


@pytest.mark.parametrize(
    ("text", "assumed"),
    [
        ("flat:latency=20us,bandwidth=1Gbit", "overhead=1us, reduce=9GB"),
        ("flat:latency=0.5us,bandwidth=200Gbit", "overhead=0.5us, reduce=25GB"),
        ("hosts:2x4,inside=0.3us/300GB,link=5us/400Gbit", "overhead=1us (inside a host 0.3us), reduce=300GB"),
        ("hosts:2x4,inside=2us/5GB,link=5us/400Gbit,overhead=2us", "reduce=50GB"),
        ("hosts:2x4,inside=2us/5GB,link=5us/1Gbit,reduce=1GB", "overhead=1us"),
        ("flat:latency=20us,bandwidth=1Gbit,overhead=0us,reduce=1GB", ""),
    ],
)
def test_what_is_not_given_fits_the_links(text: str, assumed: str) -> None:
    assert topology(text).assumed == assumed


def test_each_message_costs_as_its_way_suggests() -> None:
    there = topology("hosts:2x4,inside=0.3us/300GB,link=5us/400Gbit")
    assert (there.handling(0, 3), there.handling(0, 4), there.reducing) == (3e-7, 1e-6, 1 / 300e9)
    given = topology("hosts:2x4,inside=0.3us/300GB,link=5us/400Gbit,overhead=2us,reduce=4GB")
    assert (given.handling(0, 3), given.handling(0, 4), given.reducing) == (2e-6, 2e-6, 1 / 4e9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected flat:latency=TIME,bandwidth=RATE or hosts:.* or racks:"),
        ("ring:4", "expected flat:"),
        ("flat", "latency and bandwidth is missing; expected flat:latency=TIME"),
        ("flat:latency=20us", "bandwidth is missing"),
        ("flat:latency=20us,bandwidth=1Gb", "'bandwidth=1Gb' cannot be read; .*10Gbit or 1.5GB"),
        ("flat:latency=20us,bandwidth=0GB", "'bandwidth=0GB' cannot be read"),
        ("flat:latency=20,bandwidth=1GB", "'latency=20' cannot be read; .*TIME is like 20us"),
        ("flat:latency=-1us,bandwidth=1GB", "cannot be read"),
        ("flat:latency=1us,latency=1us,bandwidth=1GB", "'latency' is given twice"),
        ("flat:latency=1us,bandwidth=1GB,speed=9", "'speed' is unknown"),
        ("hosts:4,inside=1us/1GB,link=1us/1GB", "'4' is not a shape; expected hosts:HOSTSxRANKS"),
        ("hosts:4x0,inside=1us/1GB,link=1us/1GB", "'4x0' is not a shape"),
        ("hosts:inside=1us/1GB,link=1us/1GB", "is not a shape"),
        ("hosts:4x2,inside=1us/1GB,link=1us", "'link=1us' cannot be read"),
        ("hosts:4x2,inside=1us/1GB,link=1us/1GB/shared", "cannot be read"),
        ("hosts:4x2,inside=1us/1GB,link=1us/1GB,uplink=1us/1GB", "'uplink' is unknown"),
        (
            "racks:4x2,inside=1us/1GB,link=1us/1GB,uplink=1us/1GB",
            "'4x2' is not a shape; expected racks:RACKSxHOSTSxRANKS",
        ),
    ],
)
def test_what_is_no_topology(text: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        topology(text)
