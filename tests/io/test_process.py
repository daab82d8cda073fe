import resource
import subprocess
import sys

from alphorn.io.process import keep_freed_memory

RAISE = """
import resource
from alphorn.io.process import raise_file_limit
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
assert raise_file_limit() == most
assert raise_file_limit() == most
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most))
"""


def faults_of_a_thousand_datagrams() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        held = [bytes(60_000) for _ in range(20)]
        held.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_memory_of_datagrams_is_not_asked_of_the_kernel_again_and_again():
    assert keep_freed_memory()
    assert keep_freed_memory()
    faults_of_a_thousand_datagrams()  # The first round takes what the later ones use again.

    assert faults_of_a_thousand_datagrams() < 1000  # of the 15,000 pages that were filled


def test_a_process_may_open_as_many_files_as_the_system_allows_it():
    done = subprocess.run([sys.executable, "-c", RAISE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")
