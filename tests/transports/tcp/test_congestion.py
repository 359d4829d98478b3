"""Connections between hosts get the congestion control that was asked for, or a reason; bad settings are told."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from hocket.collectives.base.config import Config
from hocket.errors import ArgumentError
from hocket.transports.tcp.long import congestion


@pytest.fixture
def link() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as made:
        yield made


def test_a_control_by_its_name(link: socket.socket) -> None:
    for name in congestion.setting("tcp_allowed_congestion_control").split():
        assert congestion.control(link, name) == "" and congestion.control_of(link) == name


def test_an_unknown_control_is_told_with_those_that_there_are(
    link: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    before = congestion.control_of(link)
    with caplog.at_level(logging.WARNING, "hocket"):
        refused = congestion.control(link, "carrier-pigeon")
    assert "no congestion control 'carrier-pigeon'; it has " in refused and congestion.control_of(link) == before
    assert all(name in refused and name in caplog.text for name in congestion.known()), caplog.text
    assert f"keep the system's ({congestion.setting('tcp_congestion_control')})" in caplog.text


def test_what_only_root_may_choose_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def setsockopt(self, *_: object) -> None:  # type: ignore[override]
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(congestion, "round_trip", lambda link: 0.1)
    with Refusing() as link:
        assert "bbr is only for root: net.ipv4.tcp_allowed" in congestion.control(link, congestion.AUTO)
        assert congestion.control(link, congestion.SYSTEM) == ""


def test_a_lan_is_left_alone(link: socket.socket) -> None:
    before = congestion.control_of(link)
    assert congestion.round_trip(link) < congestion.LONG
    assert congestion.control(link, congestion.AUTO) == "" and congestion.control_of(link) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("HOCKET_CONGESTION", "BBR!"), ("HOCKET_STREAMS", "17"), ("HOCKET_STREAMS", "-1"), ("HOCKET_STREAMS", "four"),
     ("HOCKET_PATHS", "eth0,,eth1")],
)  # fmt: skip
def test_a_bad_value_is_refused_with_what_is_accepted(name: str, value: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is '.*'; accepted: "):
        Config.from_env({name: value})


def test_a_path_that_is_not_there_is_told_with_those_that_are(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hocket"):
        config = Config.from_env({"HOCKET_PATHS": "127.0.0.1,nosuch0,127.0.0.2"})
    assert (config.iface, config.paths) == ("127.0.0.1", ("", "127.0.0.2"))
    assert "'nosuch0' is not an interface of this machine; its interfaces: " in caplog.text and "lo" in caplog.text
    config = Config.from_env({"HOCKET_PATHS": "nosuch0,127.0.0.2"})
    assert (config.iface, config.paths) == (None, ("127.0.0.2",))
    config = Config.from_env({"HOCKET_PATHS": "127.0.0.2,127.0.0.1", "HOCKET_IFACE": "127.0.0.1"})
    assert (config.iface, config.paths) == ("127.0.0.1", ("127.0.0.2", ""))
