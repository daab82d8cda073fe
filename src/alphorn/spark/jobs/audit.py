"""`audit`: proves from the cluster's testimony that nothing was lost, doubled, reordered or changed.

The heart is `violations`: ten rules, each a query over events that must give no row. A rule looks only at what has had
time to be said: the newest `grace` of the testimony is not judged, because nodes speak independently of each other.
"""

import datetime
from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from alphorn.model.audit import AuditStage
from alphorn.model.messages import Flag
from alphorn.spark.jobs.audit_events import by_message, events_of

GRACE = datetime.timedelta(seconds=30)
DEADLINE = datetime.timedelta(hours=1)

OUTCOMES = (AuditStage.DELIVERED, AuditStage.ACKNOWLEDGED, AuditStage.DEAD, AuditStage.DROPPED)
UNORDERED = int(Flag.PRIORITY | Flag.DELAY | Flag.KEY)  # batches that may overtake each other
OUTLET = ("destination", "subscription")
VIOLATION = ("rule", "destination", "subscription", "position", "producer", "counter", "detail")


class Evidence:
    """Events, whole and by message, and until when they are judged. All rules read them, so they are kept."""

    def __init__(self, events: DataFrame, *, grace: datetime.timedelta, deadline: datetime.timedelta) -> None:
        self.events = events.cache()
        self.messages = by_message(self.events).cache()
        self._newest = self.events.agg(F.max("time").alias("newest"))
        self._grace = grace
        self.deadline = deadline

    def said(self, *stages: AuditStage) -> DataFrame:
        """The messages that came to one of these stages."""
        return self.messages.where(F.col("stage").isin([str(stage) for stage in stages]))

    def old(self, rows: DataFrame, age: datetime.timedelta | None = None) -> DataFrame:
        """Those rows that are older than the newest event by this much, or by the grace."""
        span = F.lit(age if age is not None else self._grace)
        return rows.crossJoin(F.broadcast(self._newest)).where(F.col("time") <= F.col("newest") - span).drop("newest")

    def still_audited(self, rows: DataFrame) -> DataFrame:
        """Leaves out what was said so late that the audit of its destination may have ended before."""
        ended = (
            self.events.where(F.col("stage") == str(AuditStage.ENDED))
            .groupBy("destination")
            .agg((F.min("time") - F.lit(self._grace)).alias("ended"))
        )
        joined = rows.join(F.broadcast(ended), "destination", "left")
        return joined.where(F.col("ended").isNull() | (F.col("time") < F.col("ended"))).drop("ended")


def confirmed_is_committed(evidence: Evidence) -> DataFrame:
    """A client was told that a message is committed, and no replica has it."""
    confirmed = evidence.still_audited(evidence.old(evidence.said(AuditStage.CONFIRMED)))
    committed = evidence.said(AuditStage.COMMITTED).select("destination", "producer", "counter").distinct()
    lost = confirmed.join(committed, ["destination", "producer", "counter"], "left_anti")
    return _violation(lost, "R1", F.concat(F.lit("confirmed by "), "node"))


def one_content_for_a_position(evidence: Evidence) -> DataFrame:
    """Replicas disagree on which message stands at a position."""
    what = F.struct("sequence", "command", "index", "producer", "counter", "digest")
    counted = (
        evidence.said(AuditStage.COMMITTED)
        .groupBy("destination", "position")
        .agg(
            F.countDistinct(what).alias("versions"), F.concat_ws(", ", F.sort_array(F.collect_set("node"))).alias("who")
        )
    )
    split = counted.where("versions > 1")
    return _violation(split, "R2", F.concat("versions", F.lit(" contents, said by "), "who"))


def no_gap_in_positions(evidence: Evidence) -> DataFrame:
    """Positions were given out with a hole between them."""
    stages = [str(stage) for stage in (AuditStage.COMMITTED, AuditStage.OFFERED, AuditStage.BEGUN)]
    is_start = F.col("stage") == str(AuditStage.BEGUN)
    ranges = (
        evidence.events.where(F.col("stage").isin(stages))
        .select(
            "destination",
            "first",
            F.when(is_start, F.col("first") - 1).otherwise(F.col("last")).alias("last"),
            is_start.alias("starts"),
        )
        .distinct()
    )
    before = Window.partitionBy("destination").orderBy("first", "last").rowsBetween(Window.unboundedPreceding, -1)
    reached = ranges.withColumn("reached", F.max("last").over(before))
    holes = reached.where((F.col("first") > F.col("reached") + 1) & ~F.col("starts"))
    missing = holes.withColumn("position", F.col("reached") + 1)
    return _violation(missing, "R3", F.concat(F.lit("missing through "), F.col("first") - 1))


def every_message_has_an_outcome(evidence: Evidence) -> DataFrame:
    """A message could be given out, its subscription lives, and nothing became of it by the deadline."""
    offered = evidence.old(evidence.said(AuditStage.OFFERED), evidence.deadline).dropDuplicates([*OUTLET, "position"])
    settled = evidence.said(*OUTCOMES).select(*OUTLET, "position").distinct()
    over = evidence.events.where((F.col("stage") == str(AuditStage.DROPPED)) & (F.col("last") == 0)).select(*OUTLET)
    waiting = offered.join(settled, [*OUTLET, "position"], "left_anti").join(over.distinct(), [*OUTLET], "left_anti")
    return _violation(evidence.still_audited(waiting), "R4", F.lit("offered, and nothing since"))


def consumed_once(evidence: Evidence) -> DataFrame:
    """One message was consumed twice by one subscription: two entries of the log took it away."""
    counted = (
        evidence.said(AuditStage.ACKNOWLEDGED)
        .groupBy(*OUTLET, "position")
        .agg(F.sort_array(F.collect_set("sequence")).alias("sequences"))
    )
    twice = counted.where(F.size("sequences") > 1)
    return _violation(twice, "R5", F.concat(F.lit("acknowledged by entries "), F.concat_ws(", ", "sequences")))


def delivered_is_committed(evidence: Evidence) -> DataFrame:
    """A message was delivered that no replica has."""
    known = evidence.said(AuditStage.COMMITTED, AuditStage.OFFERED).select("destination", "position").distinct()
    delivered = evidence.still_audited(evidence.old(evidence.said(AuditStage.DELIVERED)))
    unknown = delivered.join(known, ["destination", "position"], "left_anti")
    return _violation(unknown, "R6", F.concat(F.lit("delivered by "), "node"))


def delivered_in_order(evidence: Evidence) -> DataFrame:
    """A consumer got messages for the first time in another order than they have."""
    outlet = [*OUTLET, "position"]
    returned = evidence.said(AuditStage.RETURNED).select(*outlet).distinct()
    free = evidence.said(AuditStage.COMMITTED).where(F.col("flags").bitwiseAND(UNORDERED) != 0)
    free = free.select("destination", "position").distinct()
    first = evidence.said(AuditStage.DELIVERED).where("attempt = 1")
    judged = first.join(returned, outlet, "left_anti").join(free, ["destination", "position"], "left_anti")
    spoken = Window.partitionBy(*OUTLET, "consumer", "run").orderBy("place", "position")
    before = F.lag("position").over(spoken)
    overtaken = judged.withColumn("before", before).where(F.col("before") > F.col("position"))
    return _violation(overtaken, "R7", F.concat(F.lit("after position "), "before"))


def producers_in_order(evidence: Evidence) -> DataFrame:
    """Messages of one producer stand in another order than they were sent in."""
    committed = evidence.said(AuditStage.COMMITTED).dropDuplicates(["destination", "position"])
    mine = Window.partitionBy("destination", "producer").orderBy("position")
    broken = committed.withColumn("before", F.lag("counter").over(mine)).where(F.col("before") >= F.col("counter"))
    return _violation(broken, "R8", F.concat(F.lit("after counter "), "before"))


def content_is_unchanged(evidence: Evidence) -> DataFrame:
    """A message's bytes differ between what was sent, what is in the log, and what was delivered."""
    told = evidence.said(AuditStage.PRODUCED, AuditStage.COMMITTED, AuditStage.DELIVERED).where(
        F.col("digest").isNotNull()
    )
    counted = told.groupBy("producer", "counter").agg(
        F.min("destination").alias("destination"),
        F.max("position").alias("position"),
        F.countDistinct("digest").alias("contents"),
        F.concat_ws(", ", F.sort_array(F.collect_set("stage"))).alias("stages"),
    )
    return _violation(counted.where("contents > 1"), "R9", F.concat("contents", F.lit(" contents in "), "stages"))


def delivered_once(evidence: Evidence) -> DataFrame:
    """A message was delivered again without having come back, and without being marked as delivered again."""
    outlet = [*OUTLET, "position"]
    unseen = (
        evidence.said(AuditStage.RETURNED)
        .where("is_unseen")
        .groupBy(*outlet)
        .agg(F.countDistinct("sequence").alias("returns"))
    )
    deliveries = evidence.said(AuditStage.DELIVERED).groupBy(*outlet, "attempt").agg(F.count("*").alias("times"))
    joined = deliveries.join(unseen, outlet, "left").fillna({"returns": 0})
    again = joined.where(F.col("times") > 1 + F.col("returns"))
    return _violation(again, "R10", F.concat("times", F.lit(" deliveries counted as "), "attempt"))


RULES: tuple[Callable[[Evidence], DataFrame], ...] = (
    confirmed_is_committed,
    one_content_for_a_position,
    no_gap_in_positions,
    every_message_has_an_outcome,
    consumed_once,
    delivered_is_committed,
    delivered_in_order,
    producers_in_order,
    content_is_unchanged,
    delivered_once,
)


def violations(
    messages: DataFrame, *, grace: datetime.timedelta = GRACE, deadline: datetime.timedelta = DEADLINE
) -> DataFrame:
    """Every violation of every rule in the messages of `topic:_AUDIT`; no row is the proof."""
    evidence = Evidence(events_of(messages), grace=grace, deadline=deadline)
    first, *others = (rule(evidence) for rule in RULES)
    for other in others:
        first = first.unionByName(other)
    return first


def coverage(messages: DataFrame) -> DataFrame:
    """How many messages of each destination the testimony names, by stage: what a proof is about."""
    counted = by_message(events_of(messages)).groupBy("destination", "stage")
    return counted.agg(
        F.countDistinct(F.struct("position", "subscription", "producer", "counter")).alias("messages"),
        F.countDistinct("node").alias("nodes"),
    ).orderBy("destination", "stage")


def _violation(rows: DataFrame, rule: str, detail: Column) -> DataFrame:
    """The same columns for all rules; those that a rule does not know are null."""
    known = set(rows.columns)
    kinds = {"subscription": "long", "position": "long", "counter": "long"}
    return rows.select(
        F.lit(rule).alias("rule"),
        *(
            (F.col(name) if name in known else F.lit(None)).cast(kinds.get(name, "string")).alias(name)
            for name in VIOLATION[1:-1]
        ),
        detail.alias("detail"),
    )
