"""Whose turn it is: by work done, in the order of each."""

from random import Random

from alphorn.client_manager.turns import REMEMBERED_MAX, Turns


def add(turns: Turns[int], whose: bytes, *items: int, work: int = 1, size: int = 0) -> None:
    for item in items:
        turns.add(whose, item, size=size, work=work)


def take(turns: Turns[int], count: int) -> list[tuple[bytes, int]]:
    return [turns.take() for _ in range(count)]


def test_lines_of_equal_work_take_turns_and_keep_their_order() -> None:
    turns: Turns[int] = Turns()
    add(turns, b"a", 1, 2, 3)
    add(turns, b"b", 4, 5)
    assert take(turns, 5) == [(b"a", 1), (b"b", 4), (b"a", 2), (b"b", 5), (b"a", 3)]
    assert not turns


def test_who_wants_large_things_gets_fewer_of_them() -> None:
    turns: Turns[int] = Turns()
    add(turns, b"large", *range(10), work=100)
    add(turns, b"small", *range(1000), work=1)
    taken = [whose for whose, _ in take(turns, 505)]
    assert taken.count(b"large") in (5, 6)


def test_who_comes_anew_waits_for_nothing_that_others_have_waiting() -> None:
    turns: Turns[int] = Turns()
    add(turns, b"flood", *range(10_000))
    take(turns, 5_000)
    add(turns, b"new", 1, 2)
    assert [whose for whose, _ in take(turns, 4)].count(b"new") == 2


def test_nothing_is_gained_by_having_wanted_nothing_before() -> None:
    turns: Turns[int] = Turns()
    add(turns, b"busy", *range(1000))
    take(turns, 500)
    add(turns, b"idle", *range(1000))
    taken = [whose for whose, _ in take(turns, 100)]
    assert 49 <= taken.count(b"busy") <= 51


def test_nothing_is_gained_by_wanting_one_large_thing_at_a_time() -> None:
    turns: Turns[int] = Turns()
    add(turns, b"many", *range(1000), work=10)
    add(turns, b"single", 0, work=100)
    taken = []
    for _ in range(220):
        whose, _ = turns.take()
        taken.append(whose)
        if whose == b"single":
            add(turns, b"single", 0, work=100)
    assert taken.count(b"many") >= 9 * taken.count(b"single")


def test_sizes_are_those_of_what_waits() -> None:
    turns: Turns[int] = Turns()
    add(turns, b"a", 1, 2, size=100)
    add(turns, b"b", 3, size=50)
    turns.grow_last(b"b", 7)
    assert (turns.size, turns.size_of(b"a"), turns.size_of(b"b"), turns.size_of(b"c")) == (257, 200, 57, 0)
    take(turns, 2)
    assert (turns.size, turns.size_of(b"a"), turns.last_of(b"a"), turns.last_of(b"b")) == (100, 100, 2, None)


def test_those_whose_lines_have_ended_are_forgotten_when_the_others_have_had_as_much() -> None:
    turns: Turns[int] = Turns()
    add(turns, b"long", *range(10 * REMEMBERED_MAX))
    for number in range(3 * REMEMBERED_MAX):
        add(turns, number.to_bytes(4, "big"), 0)
        take(turns, 2)
    assert len(turns._ended) <= REMEMBERED_MAX + 2


def test_whatever_comes_and_goes_the_order_of_each_is_kept_and_nobody_gets_more_than_a_turn_ahead() -> None:
    random = Random(7)
    turns: Turns[int] = Turns()
    names = [bytes([number]) for number in range(5)]
    sent, got = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for name in names:
        for _ in range(200):
            sent[name] += 1
            add(turns, name, sent[name], work=random.randint(1, 20))
    for _ in range(300):
        whose, item = turns.take()
        got[whose] += 1
        assert item == got[whose]
        if random.random() < 0.5:
            name = random.choice(names)
            sent[name] += 1
            add(turns, name, sent[name], work=random.randint(1, 20))
    assert max(got.values()) < 1.5 * min(got.values())
