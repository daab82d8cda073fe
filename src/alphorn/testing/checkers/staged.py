"""The checker of what jobs stage (testing/staging.py)."""

from alphorn.testing.book import Receipt
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.staging import BatchName, Publication
from alphorn.testing.watch import Violation


class StagedIsSeenOnce:
    """Of each batch one publication is seen, all of it together, or none; what nobody asked to publish never is.

    A job that heard that its batch is published may have asked for several publications; one of them is seen then. In
    the end its messages count as confirmed, so that others look whether they were consumed.
    """

    __slots__ = ("_cluster", "_positions", "_seen")
    name = "staged is seen once, all together"

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._seen: dict[BatchName, Publication] = {}
        self._positions: dict[tuple[str, int], int] = {}  # by source and token
        cluster.book.on_receipt.append(self._on_receipt)

    def _on_receipt(self, receipt: Receipt) -> None:
        found = self._cluster.staging_book.staged.get(receipt.token)
        if found is None:
            return
        batch, publication = found
        if publication is None or not publication.is_asked:
            raise Violation(self.name, f"message {receipt.token} of batch {batch} was seen, and never published")
        if self._seen.setdefault(batch, publication) is not publication:
            raise Violation(
                self.name, f"batch {batch} was published twice: message {receipt.token} came with the second"
            )
        self._positions[receipt.source, receipt.token] = receipt.position

    def finish(self) -> None:
        """All is consumed: what was seen must be whole, and what was said to be published seen."""
        for batch in sorted(self._cluster.staging_book.done - self._seen.keys()):
            if all(map(self._is_owed, self._cluster.staging_book.batches[batch])):
                raise Violation(self.name, f"batch {batch} was said to be published, and nothing of it came")
        book = self._cluster.book
        for batch, publication in self._seen.items():
            for destination, tokens in publication.tokens.items():
                for token in tokens:
                    book.sent[token].is_confirmed = True
                for source in book.covered:
                    if source.partition("/")[0] == destination:
                        self._check_source(batch, source, tokens)

    def _is_owed(self, publication: Publication) -> bool:
        """Whether anything of it belongs to a queue, or to a subscription that was there before it was staged."""
        book = self._cluster.book
        return any(
            source == destination or book.sent[tokens[0]].at > since
            for destination, tokens in publication.tokens.items()
            for source, since in book.covered.items()
            if source.partition("/")[0] == destination
        )

    def _check_source(self, batch: BatchName, source: str, tokens: list[int]) -> None:
        """A subscription that began before has all of it, in its order and with nothing between; another has none."""
        positions = [self._positions.get((source, token)) for token in tokens]
        first = positions[0]
        if first is None and not any(positions):
            return
        if first is None or positions != list(range(first, first + len(tokens))):
            raise Violation(self.name, f"messages {tokens} of batch {batch} are in {source} at {positions}")
