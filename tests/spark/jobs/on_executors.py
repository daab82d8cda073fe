"""Archives a topic with executors in processes of their own, as on a Spark cluster: `python on_executors.py FOLDER`."""

import sys
from pathlib import Path

import alphorn
import alphorn.testing
from alphorn.spark.jobs.archive import append
from alphorn.spark.jobs.starting import start_spark
from alphorn.spark.tiers import live
from tests.spark.jobs.small import make_small

with alphorn.testing.cluster() as cluster, alphorn.connect(cluster.url) as connection:
    connection.destinations.create("topic:far", retain=3600)
    producer = connection.session().producer("topic:far")
    producer.send_many(list(range(1000)))
    producer.flush()
    spark = start_spark("tests", "local-cluster[1,1,1024]")
    make_small(spark)
    manifest = append(live(spark, cluster.url, "topic:far", {}), Path(sys.argv[1]))
    print(f"archived {sum(file.rows for file in manifest.files.values())}")
    spark.stop()
