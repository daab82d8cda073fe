"""What a Client Manager knows of destinations."""

from alphorn.client_manager.directory import Directory
from alphorn.model.destinations import Policy, parse_destination

QUEUE = parse_destination("queue:q")


def test_a_name_that_is_doubted_is_looked_up_anew_and_its_place_known_until_the_log_says_that_it_is_gone() -> None:
    directory = Directory(1)
    old = directory.learn(5, QUEUE, Policy())
    directory.doubt(5)
    assert directory.find(QUEUE) is None
    assert directory.at(5) is old
    new = directory.learn(6, QUEUE, Policy())
    directory.doubt(5)
    assert directory.forget(5) is old
    assert (directory.find(QUEUE), directory.at(5), directory.at(6)) == (new, None, new)


def test_to_doubt_what_is_not_known_does_nothing() -> None:
    directory = Directory(1)
    directory.doubt(5)
    assert directory.at(5) is None
