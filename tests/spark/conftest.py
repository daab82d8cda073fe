"""One Spark and one cluster for all tests here; each test has destinations of its own.

Whoever wants this Spark gets it in one worker of pytest only (`xdist_group`), because two of them would be two Javas.
Tests that start drivers of their own may run beside it.
"""

import os
import shutil
import sys

import pytest

import alphorn.testing

TIMEOUT = "30"

# Every Java that starts from here on lives for seconds: compiling well costs it more than it brings.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items):
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def cluster():
    """Two channels, so that offsets have two numbers; each with a primary and a backup."""
    with alphorn.testing.cluster(client_managers=1, channels=2) as made:
        yield made


@pytest.fixture(scope="session")
def connection(cluster):
    with cluster.connect(connect_timeout=30) as made:
        yield made


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    if shutil.which("java") is None:
        pytest.fail("Spark needs Java 17 or newer; install openjdk-17-jre-headless")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    warehouse = tmp_path_factory.mktemp("warehouse")
    made = (
        SparkSession.builder.master("local[2]")
        .appName("alphorn tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.driver.memory", "1g")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture
def topic(request, connection):
    """A topic that keeps what it gets."""
    name = f"topic:{request.node.name}"
    connection.destinations.create(name, retain=3600)
    return name


@pytest.fixture
def load(spark, cluster):
    """Reads a destination as a batch."""

    def make(destination, **options):
        reader = spark.read.format("alphorn").option("url", cluster.url).option("timeout", TIMEOUT)
        return reader.options(destination=destination, **options).load()

    return make


@pytest.fixture
def stream(spark, cluster):
    """Reads a destination as a stream."""

    def make(destination, **options):
        reader = spark.readStream.format("alphorn").option("url", cluster.url).option("timeout", TIMEOUT)
        return reader.options(destination=destination, **options).load()

    return make


@pytest.fixture
def send(connection):
    """Sends bodies, each call one committed batch or more."""
    session = connection.session()

    def make(destination, *bodies, **how):
        producer = session.producer(destination)
        if how:
            for body in bodies:
                producer.send(body, **how)
        else:
            producer.send_many(list(bodies))
        producer.flush()

    yield make
    session.close()
