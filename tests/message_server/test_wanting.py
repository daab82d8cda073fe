"""Which events a work process wants is known at every server that it joins."""

from alphorn.message_server.process_machine import Connected, Heard, Send, WantEvents
from alphorn.message_server.work_process import Settings, WorkProcess
from alphorn.model import internal

RUN = bytes(range(16))


def test_a_server_that_welcomes_late_hears_what_is_wanted_by_then() -> None:
    row = internal.Row("worker", RUN, internal.PROGRAM)
    process = WorkProcess(Settings(row=row, secret=b"", servers=("ms1", "ms2")), now=0.0)
    process.receive(Connected("ms1"), 0.0)
    process.receive(Connected("ms2"), 0.0)
    process.receive(Heard("ms1", internal.Joined("ms1", RUN)), 0.0)
    process.receive(WantEvents(("node_down",)), 0.0)
    process.receive(Heard("ms2", internal.Joined("ms2", RUN)), 0.0)
    sent = [output for output in process.take_outputs() if isinstance(output, Send)]
    wanted = {output.server for output in sent if output.frame == internal.Want(["node_down"])}
    assert wanted == {"ms1", "ms2"}
