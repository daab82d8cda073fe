import resource

from alphorn.io.process import keep_freed_memory


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
