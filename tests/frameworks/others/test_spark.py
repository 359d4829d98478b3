"""hocket inside Spark: barrier stages of a real Spark in its JVM, whose tasks are processes."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import hocket
import hocket.spark

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "frameworks")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    assert shutil.which("java") or os.environ.get("JAVA_HOME"), "Spark needs Java: apt install default-jre-headless"
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", OMP_NUM_THREADS="1")
    place = str(tmp_path_factory.mktemp("spark"))
    settings = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": place, "spark.sql.warehouse.dir": f"{place}/tables", "spark.log.level": "ERROR",
    }  # fmt: skip
    session = SparkSession.builder.master("local[3]").config(map=settings).getOrCreate()
    yield session
    session.stop()


def total(comm: hocket.Communicator, scale: float, power: int = 1) -> tuple[int, int, int, float]:
    mine = np.full(1000, (comm.rank + scale) ** power)
    hocket.allreduce(mine)
    return comm.rank, comm.size, os.getpid(), float(mine[-1])


def test_a_session(spark: Any) -> None:
    found = hocket.spark.run(spark, total, 1.0, power=2)
    assert [(rank, size, value) for rank, size, _, value in found] == [(r, 3, 14.0) for r in range(3)]
    assert len({pid for _, _, pid, _ in found}) == 3
    two = hocket.spark.run(spark.sparkContext, total, 1.0, ranks=2)
    assert [value for *_, value in two] == [3.0, 3.0]
    assert [value for *_, value in hocket.spark.run(spark, total, 1.0, ranks=1)] == [1.0]


def test_an_rdd(spark: Any) -> None:
    """Each rank has the rows of its partition."""

    def mean(comm: hocket.Communicator, rows: Any, digits: int) -> tuple[list[int], float]:
        mine = list(rows)
        return mine, round(float(comm.allreduce(np.array([sum(mine), len(mine)], float)) @ [1, 0]) / 10, digits)

    rdd = spark.sparkContext.parallelize(range(10), 2)
    assert hocket.spark.run(rdd, mean, 3) == [([0, 1, 2, 3, 4], 4.5), ([5, 6, 7, 8, 9], 4.5)]
    frame = spark.createDataFrame([(i,) for i in range(4)]).repartition(2)
    found = hocket.spark.run(frame.rdd, lambda comm, rows: comm.allreduce(np.array([sum(row[0] for row in rows)]))[0])
    assert found == [6, 6]


def test_one_rank_fails_and_all_end(spark: Any, tmp_path: Any) -> None:
    """Once: Spark does not start the stage again."""

    def fails(comm: hocket.Communicator) -> None:
        (tmp_path / f"{comm.rank}-{time.time_ns()}").touch()
        if comm.rank == 2:
            raise ZeroDivisionError("by rank 2")
        comm.barrier()

    started = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="by rank 2") as caught:
        hocket.spark.run(spark, fails)
    assert time.monotonic() - started < 30 and len(list(tmp_path.iterdir())) == 3
    assert "on rank 2:" in str(caught.value.__cause__) and "in fails" in str(caught.value.__cause__)


def test_calls_that_differ(spark: Any) -> None:
    def differ(comm: hocket.Communicator) -> None:
        comm.allreduce(np.ones(1 + comm.rank))

    with pytest.raises(hocket.MismatchError, match="the ranks called different things"):
        hocket.spark.run(spark, differ)


def test_an_error_and_a_result_that_cannot_be_pickled(spark: Any) -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def odd(comm: hocket.Communicator) -> None:
        raise Odd(1, 2)

    with pytest.raises(RuntimeError, match="Odd: 1 and 2"):
        hocket.spark.run(spark, odd, ranks=2)
    with pytest.raises(TypeError, match="pickle"):
        hocket.spark.run(spark, lambda comm: comm.world.lock, ranks=2)


def test_a_process_dies(spark: Any, tmp_path: Any) -> None:
    """Spark ends the others, and does not start the stage again."""

    def dies(comm: hocket.Communicator) -> None:
        (tmp_path / f"{comm.rank}-{time.time_ns()}").touch()
        if comm.rank == 1:
            os._exit(3)
        comm.barrier()

    with pytest.raises(Py4JJavaError, match="barrier task .* finished unsuccessfully"):
        hocket.spark.run(spark, dies, ranks=2)
    assert len(list(tmp_path.iterdir())) == 2
    assert hocket.spark.run(spark, lambda comm: comm.size) == [3, 3, 3]


def test_what_cannot_be_used(spark: Any) -> None:
    with pytest.raises(hocket.ArgumentError, match="an int is neither a SparkSession"):
        hocket.spark.run(3, total)
    with pytest.raises(hocket.ArgumentError, match="ranks=0 must be at least 1"):
        hocket.spark.run(spark, total, ranks=0)
    with pytest.raises(hocket.ArgumentError, match="one rank for each partition"):
        hocket.spark.run(spark.sparkContext.parallelize(range(2)), total, ranks=2)


def test_the_key_is_seen_nowhere(spark: Any) -> None:
    def look(comm: hocket.Communicator) -> tuple[str, str]:
        with open("/proc/self/cmdline") as line, open("/proc/self/environ") as environ:
            return comm.world.session.key.hex(), line.read() + environ.read() + repr(os.environ)

    found = hocket.spark.run(spark, look)
    keys = {key for key, _ in found}
    assert len(keys) == 1 and not any(key in text for key in keys for _, text in found)


CLUSTER = """
import json, numpy as np, os
from pyspark.sql import SparkSession
import hocket.spark
settings = json.loads(os.environ["SETTINGS"])
spark = SparkSession.builder.master("local-cluster[2,1,512]").config(map=settings).getOrCreate()
def sums(comm):
    return comm.rank, float(comm.allreduce(np.ones(1 << 20))[0])
print("found", hocket.spark.run(spark, sums, ranks=2))
spark.stop()
"""


@pytest.mark.timeout(300)
def test_executors_of_their_own_with_encryption(tmp_path: Any) -> None:
    """A cluster of two executors, each a JVM, which authenticate and encrypt what they say."""
    settings = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(tmp_path), "spark.log.level": "ERROR", "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true", "spark.executor.memory": "512m",
        "spark.authenticate.secret": secrets.token_hex(32),
    }  # fmt: skip
    (tmp_path / "program.py").write_text(CLUSTER)
    command = [sys.executable, str(tmp_path / "program.py")]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    env["SETTINGS"] = json.dumps(settings)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
    assert "found [(0, 2.0), (1, 2.0)]" in done.stdout, done.stdout + done.stderr[-4000:]


@pytest.mark.timeout(300)
def test_the_example(tmp_path: Any) -> None:
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "MASTER": "local[2]"}
    command = [sys.executable, os.path.join(EXAMPLES, "spark_run.py")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and "2 ranks found the centres" in done.stdout, done.stdout + done.stderr[-4000:]
