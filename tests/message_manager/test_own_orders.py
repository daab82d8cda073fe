"""What a Message Manager had under way when its member was given up is ordered again, and nothing else."""

from alphorn.message_manager.own_orders import OwnOrders


def test_what_was_under_way_when_the_member_was_given_up_is_ordered_again_as_it_was() -> None:
    orders = OwnOrders()
    orders.ordered(7, b"tick")
    assert orders.refused(7, is_unknown=True) == b"tick"
    assert orders.refused(7, is_unknown=True) is None, "that is another order by now"


def test_what_is_in_the_log_or_was_not_taken_is_not_ordered_again() -> None:
    orders = OwnOrders()
    for handle in (7, 8):
        orders.ordered(handle, b"tick")
    orders.landed(7)
    assert orders.refused(7, is_unknown=True) is None
    assert orders.refused(8, is_unknown=False) is None
