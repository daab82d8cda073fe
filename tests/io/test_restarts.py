from alphorn.io.restarts import RestartPolicy


def test_pauses_grow_until_a_process_is_given_up():
    policy = RestartPolicy(quick_deaths_max=6, first_s=0.5, longest_s=3.0)
    assert [policy.on_end(0.0) for _ in range(6)] == [0.5, 1.0, 2.0, 3.0, 3.0, None]


def test_a_long_life_forgives_earlier_deaths():
    policy = RestartPolicy(quick_s=10.0, quick_deaths_max=3, first_s=0.5)
    assert policy.on_end(1.0) == 0.5
    assert policy.on_end(1.0) == 1.0
    assert policy.on_end(10.0) == 0.5
    assert policy.on_end(1.0) == 1.0
    assert policy.on_end(1.0) is None
