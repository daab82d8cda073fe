"""How many connections each Client Manager has, counted as they come and go."""

import random

from alphorn.message_manager.presence import Presence

CONNECTIONS = [bytes([number]) * 10 for number in range(8)]
LINKS = range(1, 4)


def test_the_count_of_a_link_is_what_it_named_whatever_comes_and_goes() -> None:
    chance = random.Random(7)
    presence = Presence()
    for _ in range(2_000):
        connection, link = chance.choice(CONNECTIONS), chance.choice(LINKS)
        match chance.randrange(8):
            case 0:
                presence.leave_all(link, b"origin")
            case 1:
                presence.forget(connection)
            case 2 | 3:
                presence.leave(connection, link)
            case _:
                presence.enter(connection, link)
        assert [presence.count(link) for link in LINKS] == [len(presence.named_by(link)) for link in LINKS]


def test_a_link_that_broke_leaves_nothing_to_count() -> None:
    presence = Presence()
    for link in range(1_000):
        presence.enter(CONNECTIONS[0], link)
        presence.leave_all(link, b"origin")
        presence.leave(CONNECTIONS[0], link)
    assert not presence._counts
