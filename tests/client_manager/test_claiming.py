"""Names of subscriptions that a topic on its way keeps: they are claimed again for a while, then refused."""

from alphorn.client_manager.desk import LATER_S
from alphorn.client_manager.machine import Told
from alphorn.client_manager.subscribing import PATIENCE_S
from alphorn.model import link
from alphorn.model.conversation import Failed
from tests.client_manager.managing import Managing, attached
from tests.client_manager.test_consuming import claimed


def test_a_name_that_a_move_keeps_for_now_is_claimed_again_until_it_can_be_had() -> None:
    managing = Managing()
    client = managing.connect(client_id="me")
    client.consume(client.resolve("topic:t"), subscription="s", is_durable=True)
    before = len(managing.entries)
    managing.tell(link.Answered(claimed(managing).request, 0, "Unavailable", "on its way"))
    managing.asked.clear()
    managing.manager.on_time(LATER_S)
    managing.turn()
    assert (client.take(Failed), len(managing.entries)) == ([], before)
    managing.tell(link.Answered(claimed(managing).request))
    managing.answer(number=9)
    assert [attach.subscription for attach in attached(managing)] == [9]


def test_a_name_that_a_move_keeps_for_long_is_refused_with_its_reason() -> None:
    managing = Managing()
    client = managing.connect(client_id="me")
    client.consume(client.resolve("topic:t"), subscription="s", is_durable=True)
    claim = claimed(managing)
    managing.manager.receive(Told(0, "mm1", link.Answered(claim.request, 0, "Unavailable", "on its way")), PATIENCE_S)
    managing.turn()
    [failed] = client.take(Failed)
    assert (failed.error, failed.reason) == ("Unavailable", "on its way")


def test_a_consumer_whose_client_is_gone_claims_nothing_again() -> None:
    managing = Managing()
    client = managing.connect(client_id="me")
    client.consume(client.resolve("topic:t"), subscription="s", is_durable=True)
    managing.tell(link.Answered(claimed(managing).request, 0, "Unavailable", "on its way"))
    client.close()
    managing.asked.clear()
    managing.manager.on_time(LATER_S)
    managing.turn()
    assert not any(isinstance(frame, link.Claim) for _, frame in managing.asked)
