"""What `alphorn up` tells a person of events."""

import pytest

from alphorn.cli.happenings import NAME, sentence_of
from alphorn.model.events import KINDS, MISSED, Event


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("node_up", "mm1 has joined"),
        ("node_down", "mm1 is away"),
        ("node_suspected", "mm1 is silent, and may be down"),
        ("primary_changed", "mm1 is primary of channel-1 now"),
        ("backup_lagging", "mm1 has fallen behind on channel-1"),
        ("disk_low", "the disk of mm1 has no room for messages; producers wait"),
    ],
)
def test_an_event_is_a_sentence(kind, sentence):
    assert sentence_of(Event(kind=kind, node="mm1", channel="channel-1")) == sentence


def test_a_node_that_ends_in_good_order_has_left():
    assert sentence_of(Event(kind="node_down", node="mm1", details={"reason": "left"})) == "mm1 has left"


def test_details_are_in_the_sentence():
    moved = Event(kind="destination_moved", node="mm1", channel="channel-2", details={"destination": "queue:a"})
    assert sentence_of(moved) == "queue:a has moved to channel-2"
    assert sentence_of(Event(kind=MISSED, node=NAME, details={"count": 7})) == "7 events went by untold"


@pytest.mark.parametrize(
    "event",
    [
        Event(kind="destination_created", node="mm1", details={"destination": "queue:a"}),
        Event(kind="of_a_later_version", node="mm1"),
        Event(kind="destination_moved", node="mm1", channel="channel-2"),
        Event(kind="node_up", node=NAME),
    ],
)
def test_what_nobody_wants_to_see_there_is_left_out(event):
    assert sentence_of(event) == ""


def test_every_kind_that_is_not_too_frequent_has_its_sentence():
    details = {"destination": "queue:a"}
    silent = {kind for kind in KINDS.meanings() if not sentence_of(Event(kind=kind, node="mm1", details=details))}
    assert silent == {"destination_created", "destination_deleted"}
