"""Money moves from one account to another: received and sent in one transaction, or not at all."""

from start import cluster_url

import alphorn

with cluster_url() as url, alphorn.connect(url) as connection:
    with connection.session(transacted=True) as bank:
        cash = bank.producer("queue:account of Alice")
        cash.send_many([f"banknote {number}" for number in range(3)])
        bank.commit()

    with connection.session(transacted=True) as session:
        alice = session.consumer("queue:account of Alice")
        bob = session.producer("queue:account of Bob")

        note = alice.receive(timeout=10)
        assert note is not None
        bob.send(note.body)
        session.rollback()  # Bob gets nothing, and Alice has everything back
        print("rolled back:", note.body)

        for _ in range(2):
            note = alice.receive(timeout=10)
            assert note is not None
            bob.send(note.body, properties={"from": "Alice"})
        session.commit()  # both accounts change, or this raises TransactionRolledBack and neither does

    look = connection.session()
    for name in ("Alice", "Bob"):
        print(name, "has", sorted(message.body for message in look.browser(f"queue:account of {name}")))
