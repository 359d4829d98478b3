"""A fixture that starts `hocket run`."""

import os
import shutil
import subprocess
import tempfile

import pytest

from support.launcher import RUN, limited


@pytest.fixture
def run(tmp_path):
    """run(n, program, ...) is a finished run; run.start an unfinished one.  Afterwards nothing must be left.

    limits: seconds of tools/run.py that differ.
    """
    tmp = tempfile.mkdtemp(prefix="hk-", dir="/tmp")  # short: a long one would not be used
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
    env["TMPDIR"] = tmp
    started = []

    def start(n, program, *options, limits=None, **kw):
        (tmp_path / "program.py").write_text(program)
        command = [*(limited(**limits) if limits else RUN), "-n", str(n), *options, str(tmp_path / "program.py")]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": env}
        started.append(subprocess.Popen(command, text=True, **{**pipes, **kw}))
        return started[-1]

    def finished(n, program, *options, **kw):
        process = start(n, program, *options, **kw)
        out, err = process.communicate(timeout=100)
        return process.returncode, out or "", err or ""

    finished.start, finished.tmp, finished.env = start, tmp, env
    yield finished
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    kept = f"hocket-{os.geteuid()}", f"hocket-events-{os.geteuid()}"  # where torch's ranks meet; what ranks did last
    left = [name for name in os.listdir(tmp) if name not in kept]
    shutil.rmtree(tmp)
    assert left == []
