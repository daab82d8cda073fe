"""Workers share a queue. One goes away with messages in hand; they come back, marked, for the others."""

from start import cluster_url

import alphorn

JOBS = 20

with cluster_url() as url, alphorn.connect(url) as connection:
    producer = connection.session().producer("queue:jobs")
    producer.send_many([{"job": number} for number in range(JOBS)])
    producer.flush(timeout=10)

    careless = alphorn.connect(url)
    hands = careless.session(ack="individual").consumer("queue:jobs", prefetch=5)
    taken = [hands.receive(timeout=10) for _ in range(5)]
    print("the careless worker took", [message.body["job"] for message in taken if message])
    careless.close()  # without acknowledging anything

    done = {}
    session = connection.session(ack="individual")
    worker = session.consumer("queue:jobs")
    while len(done) < JOBS:
        message = worker.receive(timeout=10)
        assert message is not None, f"only {len(done)} jobs came"
        done[message.body["job"]] = message.delivery_count
        message.acknowledge()
    again = sorted(job for job, count in done.items() if count > 1)
    print("all jobs are done;", again, "were given out before")
