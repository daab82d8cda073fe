"""What belongs to the system, as one."""

import pytest

from alphorn.model.conversation import ConsumePattern
from alphorn.model.destinations import parse_destination
from alphorn.model.joining import consume_for
from alphorn.model.patterns import parse_pattern, subscription_for
from alphorn.model.system import SYSTEM, whole_of, wish_for

LOG = parse_destination("topic:_LOG")


@pytest.mark.parametrize("whole", SYSTEM)
def test_the_wish_for_a_whole_is_a_pattern_that_means_it_alone(whole) -> None:
    wish = wish_for(whole)
    assert wish is not None
    assert parse_pattern(str(wish)) == wish
    assert whole_of(str(wish)) == whole
    assert wish.admits(whole)


@pytest.mark.parametrize("name", ["queue:_LOG", "queue:_DMQ@channel-2", "queue:orders", "topic:_MINE", "topic:_DMQ"])
def test_any_other_name_is_wished_for_by_itself(name: str) -> None:
    assert wish_for(parse_destination(name)) is None


@pytest.mark.parametrize("pattern", ["glob:_LOG", "glob:topic:_L*", "regex:topic:_LOG", "glob:queue:orders", ""])
def test_any_other_pattern_is_one_like_others(pattern: str) -> None:
    assert whole_of(pattern) is None


def test_a_subscription_to_a_whole_keeps_its_name_and_one_to_a_pattern_is_marked_for_each_topic() -> None:
    part = parse_destination("topic:_LOG@channel-2")
    for pattern, name in (("glob:topic:_LOG", "mine"), ("glob:topic:_*", subscription_for("mine", part))):
        wish = ConsumePattern(0, 1, 2, pattern, 10, subscription="mine", is_durable=True)
        assert consume_for(wish, 3, 4, part, is_new=False).subscription == name
    wish = ConsumePattern(0, 1, 2, "glob:topic:_LOG", 10)
    assert consume_for(wish, 3, 4, part, is_new=False).subscription == ""
