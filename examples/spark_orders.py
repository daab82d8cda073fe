"""Spark: read a topic, aggregate it by window, write the result back onto a topic, and query an archive with SQL.

Needs the extra `spark` (pip install 'alphorn[spark]') and Java 17.
"""

import random
import sys
import tempfile
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from start import cluster_url

import alphorn
import alphorn.spark
from alphorn.spark.jobs.archive import read_archive
from alphorn.spark.jobs.runners import Surroundings, run_archive
from alphorn.spark.jobs.starting import start_spark

ORDERS, SALES = "topic:tutorial.orders", "topic:tutorial.sales"


def send_orders(connection: alphorn.Connection, count: int) -> None:
    chance = random.Random(7)
    producer = connection.session().producer(ORDERS)
    for number in range(count):
        region = chance.choice(("eu", "us", "asia"))
        producer.send({"id": number, "amount": chance.randint(1, 500)}, properties={"region": region}, key=region)
    producer.close()


with cluster_url() as url, alphorn.connect(url) as connection, tempfile.TemporaryDirectory() as folder:
    for topic in (ORDERS, SALES):
        connection.destinations.create(topic, retain=3600.0)
    send_orders(connection, 300)

    spark = start_spark("tutorial", "local[2]")
    alphorn.spark.register(spark)

    # 1. A topic is a table: columns as in docs/spark.md, bodies as bytes, JSON-like bodies as JSON.
    orders = spark.read.format("alphorn").option("url", url).option("destination", ORDERS).load()
    order = F.from_json(F.col("body").cast("string"), "id long, amount long")
    sales = (
        orders.groupBy(F.window("timestamp", "1 hour"), F.col("properties")["region"].alias("region"))
        .agg(F.count("*").alias("orders"), F.sum(order["amount"]).alias("amount"))
        .select("region", "orders", "amount")
    )

    # 2. The sink needs a body; everything becomes visible at once, and once only.
    result = sales.select(F.to_json(F.struct("region", "orders", "amount")).alias("body"), F.col("region").alias("key"))
    result.write.format("alphorn").option("url", url).option("destination", SALES).mode("append").save()
    consumer = connection.session().consumer(SALES, start="earliest")
    for _ in range(3):
        message = consumer.receive(timeout=30)
        assert message is not None, "every region has orders"
        print("sales:", message.body)

    # 3. The archive: the same messages as Parquet files, each once, also after the cluster has forgotten them.
    archive = Path(folder) / "archive"
    around = Surroundings(spark, url, Console(stderr=True), lambda sentence: print(sentence, file=sys.stderr))
    run_archive(around, archive, ORDERS)
    read_archive(spark, archive, destination=ORDERS).createOrReplaceTempView("orders")
    query = """
        SELECT properties['region'] AS region, count(*) AS orders,
               max(get_json_object(CAST(body AS STRING), '$.amount') :: INT) AS largest
        FROM orders GROUP BY 1 ORDER BY 1
    """
    for row in spark.sql(query).collect():
        print(f"archive: {row.region} has {row.orders} orders, the largest of {row.largest}")
    spark.stop()
