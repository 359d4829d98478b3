"""k-means on a Spark RDD: each partition is a rank, which keeps its rows in NumPy while all ranks iterate with hocket.

spark-submit --master 'local[2]' spark_run.py
"""

import numpy as np
from pyspark.sql import SparkSession

import hocket.spark

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])


def points(partition):
    """Rows around the centres, as a job's input would be."""
    random = np.random.default_rng(partition)
    yield from (CENTRES[i % 3] + random.normal(size=2) for i in range(3000))


def cluster(comm, rows, k, turns):
    """The centres that all rows together have; the same on every rank."""
    x = np.array(list(rows))
    centres = comm.broadcast(x[:k].copy())  # rank 0's first rows, on all ranks
    for _ in range(turns):
        nearest = ((x[:, None] - centres) ** 2).sum(-1).argmin(1)
        sums = np.array([[*x[nearest == i].sum(0), (nearest == i).sum()] for i in range(k)])
        comm.allreduce(sums)
        centres = sums[:, :-1] / np.maximum(sums[:, -1:], 1)
    return centres


def main():
    spark = SparkSession.builder.appName("k-means with hocket").getOrCreate()
    n = spark.sparkContext.defaultParallelism
    rdd = spark.sparkContext.parallelize(range(n), n).flatMap(points)
    centres = hocket.spark.run(rdd, cluster, 3, 10)
    print(f"{len(centres)} ranks found the centres", centres[0].round(1).tolist())
    spark.stop()


if __name__ == "__main__":
    main()
