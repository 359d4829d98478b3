#!/usr/bin/env bash
# Guess: a Comm and a Listener with every abstract method of distributed's, and nothing else, serve: a connection is
# made, and a worker starts.  Its inproc:// ones have nothing more that is public.
# Seen (distributed 2026.8.0): connect() reads `_peer_addr` and `_local_addr` of the Comm, and Worker.start `prefix` of
# the Listener, which the base classes do not name: AttributeError.  Each built-in one happens to have all three.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile distributed==2026.8.0
cat > program.py <<'PY'
import asyncio
import inspect

from distributed import Scheduler, Worker
from distributed.comm import core, inproc, registry


class Plain(core.Comm):
    """Every abstract method, by another Comm."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    async def read(self, deserializers=None):
        return await self.inner.read(deserializers)

    async def write(self, msg, serializers=None, on_error=None):
        return await self.inner.write(msg, serializers, on_error)

    async def close(self):
        await self.inner.close()

    def abort(self):
        self.inner.abort()

    def closed(self):
        return self.inner.closed()

    @property
    def local_address(self):
        return self.inner.local_address.replace("inproc", "plain")

    @property
    def peer_address(self):
        return self.inner.peer_address.replace("inproc", "plain")


class Known(Plain):
    """With the two names that connect() reads."""

    _local_addr, _peer_addr = Plain.local_address, Plain.peer_address


class PlainListener(core.Listener):
    def __init__(self, inner):
        self.inner = inner

    async def start(self):
        await self.inner.start()

    def stop(self):
        self.inner.stop()

    @property
    def listen_address(self):
        return self.inner.listen_address.replace("inproc", "plain")

    @property
    def contact_address(self):
        return self.inner.contact_address.replace("inproc", "plain")


class Connector(core.Connector):
    async def connect(self, address, deserialize=True, **more):
        return kind(await inproc.InProcConnector(inproc.global_manager).connect(address, deserialize, **more))


class Backend(inproc.InProcBackend):
    def get_connector(self):
        return Connector()

    def get_listener(self, loc, handle, deserialize, **more):
        async def wrapped(comm):
            await handle(kind(comm))

        return PlainListener(inproc.InProcListener(loc, wrapped, deserialize))


async def connects():
    async def serves(comm):
        await comm.write(await comm.read())

    listener = await core.listen("plain://", serves)
    try:
        comm = await core.connect(listener.contact_address, timeout=10)
        await comm.write("an echo")
        print(f"{kind.__name__}: {await comm.read()}")
        await comm.close()
    finally:
        listener.stop()


async def works():
    async with Scheduler(protocol="plain://", dashboard_address=None) as scheduler:
        async with Worker(scheduler.address):
            print(f"{kind.__name__}: a worker")


def outcome(act):
    try:
        asyncio.run(act())
    except Exception as why:
        while why.__cause__ or why.__context__:
            why = why.__cause__ or why.__context__
        print(f"{kind.__name__}: {type(why).__name__}: {why}")
        return str(why)
    return ""


registry.backends["plain"] = Backend()
asked = sorted(Plain.__abstractmethods__ | PlainListener.__abstractmethods__)
assert not asked and not inspect.isabstract(Plain), asked
kind = Plain
assert "no attribute '_peer_addr'" in outcome(connects), "changed"
kind = Known
assert outcome(connects) == "", "changed"
assert "no attribute 'prefix'" in outcome(works), "changed"
PY
env/bin/python program.py 2> errors.txt || { cat errors.txt; exit 1; }
