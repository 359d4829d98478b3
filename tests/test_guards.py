"""Where a word of somebody else's reaches a file, a process, memory, or what is known of a third: each has its guard.

What was built above the hub is walked.  A place that GUARDS does not name fails the test, and so does one that is no
more: whoever adds one says there what keeps a word from doing harm.  docs/security.md tells who may do what at worst.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = (
    "control/elastic", "control/protocol/generations.py", "control/protocol/seats.py", "training/server",
    "training/crew/loading.py", "observe",
)  # fmt: skip
WORDS_COME = (
    "control/elastic", "control/protocol/generations.py", "control/protocol/seats.py", "training/server/wire",
    "training/server/shards",
    "training/crew/loading.py", "observe/files", "observe/collecting.py", "observe/session.py",
)  # fmt: skip
"""Where bytes become something of their own size."""
REACHES = {
    "open", "os.open", "os.unlink", "os.remove", "os.rename", "os.replace", "os.mkdir", "os.makedirs", "os.listdir",
    "remove_dead", "replacing", "os.pidfd_open", "watch", "hocket.connect", "hocket.listen", "reach", "reach_any",
    "dial",
    "self.proven", "self.waits", "self.gave", "self.generations.proven", "self.generations.waits",
    "self.generations.gave", "oldest.comm.abort",
}  # fmt: skip
"""Calls that reach a file, a process, or what is known of another member."""
GROWS = {"json.loads", "np.empty", "np.zeros", "np.frombuffer", "bytearray", "file.read", "opened.read"}
"""Calls that take memory."""
OWN = "a name, a number or a size of this process's own, or of its user's program"
PLACE = "a connection, which proves the key both ways and says where it was dialled; `makes_sense` has seen the address"
LAYOUT = "the tables, which every process has from its own program"
GROWING = "rows that were pushed, 1 GiB a push: a table without `rows=` grows with its keys"
FILE = "read by one whose file it is: bounded by bytes, rows and names (tests/observe/test_files.py)"
GUARDS: dict[str, dict[str, str]] = {
    "control/elastic/entering.py": {
        "enter": "addresses that the user gave",
        "notice": "addresses that the user gave",
    },
    "control/elastic/members.py": {
        "MemberLinks._watch": "`makes_sense`; a wrong pid or start is the loss of the seat that says it",
        "MemberLinks._reach": PLACE,
        "MemberLinks._ended": "this host's kernel has said it",
        "MemberLinks._forget": "remove_dead: a socket in this user's own folder, which nobody serves",
    },
    "control/elastic/mesh.py": {
        "Mesh._enters": "`has_room`: 256 seats of 16 kB that make sense",
        "Mesh._gives_up": "of the seat that came on this link",
    },
    "control/elastic/processes.py": {
        "started": "a number below 2^31, in /proc",
        "Process.__init__": "a number below 2^31; nothing is sent to that process",
    },
    "control/elastic/reaching.py": {"reach": PLACE, "reach_any": PLACE},
    "control/protocol/generations.py": {
        "Generations.cut": "said of a member whose connection has ended",
        "Generations.linked": "newcomers that the member at the other end has said to wait with it",
        "Generations.hear": "Leaves of the link's own process; Waits has room; Gave of a newcomer that waits with it",
        "Generations._is_dead": "no connection with it, and said by its own host",
    },
    "control/protocol/seats.py": {"seat_of": "checked, and makes sense; within one control message"},
    "observe/collecting.py": {
        "_read": FILE,
        "_opened": "a name in the folder that the user gave; no link, a plain file",
        "_pings": FILE,
    },
    "observe/files/packing.py": {"unpack": FILE, "_inflate": FILE},
    "observe/files/perfetto.py": dict.fromkeys(("Form.__init__", "Form.rows", "header", "varint"), OWN),
    "observe/files/foreign.py": {"_timeline": OWN},
    "observe/files/reading.py": {
        "_content": "a path that the user gave, its bytes bounded",
        "_perfetto": FILE, "_counts": FILE, "_packet": FILE, "_chrome": FILE,
    },
    "observe/files/writing.py": {
        "write": OWN, "replacing": "a path that the user gave; made anew, follows no link",
    },
    "observe/metrics/prometheus.py": {"serve": OWN, "_unix": OWN},
    "observe/pinging.py": {"clock_of_host": OWN},
    "observe/session.py": {
        "_gathered": "other ranks' traces, by a call of the job: ranks of one job are as trusted as its results",
        "packed": OWN, "unpacked": "other ranks' traces, likewise",
    },
    "training/crew/loading.py": {
        "Donor.__init__": OWN,
        "load": "a member's notice: the key is proven, and the arrays are compared with this process's own",
    },
    "training/server/holder.py": {
        "Holder.__init__": OWN,
        "Holder._count": "a process with too many links ends its own",
    },
    "training/server/shards/dealing.py": {"_slice": LAYOUT},
    "training/server/shards/cold.py": {"Cold.read": "rows that are there, as many as the room of their table has"},
    "training/server/shards/index.py": dict.fromkeys(("Index.__init__", "Index.add"), GROWING),
    "training/server/shards/lines.py": {
        "Lines.clear": "the room that the table's declaration gives", "_longer": GROWING,
        **dict.fromkeys(("Lines.apply", "Lines._placed"), "the push, which was bounded"),
        **dict.fromkeys(("Lines.read", "Lines._lines"), "keys of a pull, which were bounded, or an item's"),
        **dict.fromkeys(("Saving.__init__", "Saving.restored"), OWN),
    },
    "training/server/shards/snapshots.py": {
        "Folder.__init__": OWN,
        "Folder.write": "own numbers, in a folder of this user's; made anew, follows no link",
        "Folder._files": "names that match, as numbers; shards of them have to be there",
        "Folder._read": "such a name, no link; the length is compared before it is read",
    },
    "training/server/shards/store.py": {
        "Slice.__init__": LAYOUT, "unlike": LAYOUT,
    },
    "training/server/shards/packing.py": {
        "packed": OWN, "unpacked": "a payload that `Holder.keeps` bounded: arrays within it, of three dtypes",
    },
    "training/server/wire/reaching.py": {"reached": "a server's address in the view; the key is proven"},
    "training/server/wire/frames.py": {"text": OWN, "untext": "a payload that `Holder.keeps` bounded, or a server's"},
    "training/server/wire/link.py": {
        "ServerLink.__init__": OWN,
        "ServerLink.keys": "`Holder.keeps`, asked before; a server's answer has none",
        "ServerLink.payload": "`Holder.keeps`, asked before; or a server's answer",
    },
}  # fmt: skip


def places(path: Path) -> Iterator[str]:
    """Functions of this file that have such a call."""
    name = str(path.relative_to(ROOT))
    calls = REACHES | (GROWS if name.startswith(WORDS_COME) else set())

    def inside(node: ast.AST, where: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and ast.unparse(child.func) in calls:
                yield ".".join(where)
            named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            yield from inside(child, (*where, child.name) if named else where)  # type: ignore[attr-defined]

    yield from inside(ast.parse(path.read_text()), ())


def test_every_place_where_a_word_reaches_something_has_a_guard() -> None:
    paths = [path for room in map(ROOT.joinpath, ROOMS) for path in ([room] if room.is_file() else room.rglob("*.py"))]
    found = {(str(path.relative_to(ROOT)), place) for path in paths for place in places(path)}
    known = {(name, place) for name, guards in GUARDS.items() for place in guards}
    assert found - known == set(), "without a guard"
    assert known - found == set(), "no more"
