"""A leader gives jobs to workers, each a process of its own. One is killed, and the leader hands its job to another."""

import os
import subprocess
import sys
import time
from collections import deque
from queue import SimpleQueue

from start import cluster_url

import alphorn

JOBS = 6
JOB_S = 0.3  # that each takes


def lead(url: str) -> None:
    """Hands jobs out until all are done."""
    news: SimpleQueue[tuple[str, object]] = SimpleQueue()  # who, and what
    with alphorn.cluster.join(url, name=f"leader-{os.getpid()}") as process:
        process.on_message(lambda message: news.put((message.sender, message.body)))
        process.events.on("node_down", lambda event: news.put((event.node, "down")))
        workers = {f"{process.name}-worker-{number}": number for number in range(3)}
        started = {name: subprocess.Popen([sys.executable, __file__, url, name, process.name]) for name in workers}
        waiting, idle, doing = deque(range(JOBS)), deque[str](), dict[str, int]()
        left, victim = JOBS, ""
        while left:
            who, what = news.get()
            if who not in workers:
                continue  # something else of this cluster is down
            if what == "down":
                if who in doing:
                    print(f"worker {workers[who]} is down; job {doing[who]} goes to another one")
                    waiting.appendleft(doing.pop(who))
                if who in idle:
                    idle.remove(who)
            else:
                if what != "ready":
                    print(f"job {what} is done by worker {workers[who]}")
                    left -= 1
                    del doing[who]
                idle.append(who)
            while waiting and idle:
                worker = idle.popleft()
                doing[worker] = waiting.popleft()
                process.tell(worker, doing[worker])
                if not victim:
                    victim = worker
                    started[worker].kill()  # in the middle of its job
        process.tell_others("over")
        for worker in started.values():
            worker.wait()


def work(url: str, name: str, leader: str) -> None:
    """Does what the leader says, until that is over."""
    jobs: SimpleQueue[object] = SimpleQueue()
    with alphorn.cluster.join(url, name=name) as process:
        process.on_message(lambda message: jobs.put(message.body))
        process.tell(leader, "ready")
        while (job := jobs.get()) != "over":
            time.sleep(JOB_S)
            process.tell(leader, job)


if len(sys.argv) > 1:
    work(*sys.argv[1:])
else:
    with cluster_url() as address:
        lead(address)
