"""The checker of what jobs stage (testing/staging.py)."""

from alphorn.testing.book import Receipt
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.staging import BatchName, Publication
from alphorn.testing.watch import Violation

Share = tuple[BatchName, str]  # of a batch: of one destination, or of all on one channel


class StagedIsSeenOnce:
    """Of each batch one publication is seen, all of it together, or none; what nobody asked to publish never is.

    A job that heard that its batch is published may have asked for several publications; one of them is seen then. In
    the end its messages count as confirmed, so that others look whether they were consumed. Where there are several
    channels all this holds for each destination by itself. Batches of one writer are seen in their order.
    """

    __slots__ = ("_cluster", "_positions", "_seen")
    name = "staged is seen once, all together"

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._seen: dict[Share, Publication] = {}
        self._positions: dict[tuple[str, int], int] = {}  # by source and token
        cluster.book.on_receipt.append(self._on_receipt)

    def _share(self, batch: BatchName, destination: str) -> Share:
        return batch, destination if len(self._cluster.channels) > 1 else ""

    def _on_receipt(self, receipt: Receipt) -> None:
        found = self._cluster.staging_book.staged.get(receipt.token)
        if found is None:
            return
        batch, attempt = found
        publication = attempt.publication
        if publication is None or not publication.is_asked:
            raise Violation(self.name, f"message {receipt.token} of batch {batch} was seen, and never published")
        if self._seen.setdefault(self._share(batch, receipt.destination), publication) is not publication:
            raise Violation(
                self.name, f"batch {batch} was published twice: message {receipt.token} came with the second"
            )
        self._positions[receipt.source, receipt.token] = receipt.position

    def finish(self) -> None:
        """All is consumed: what was seen must be whole and in order, and what was said to be published seen."""
        book, staging_book = self._cluster.book, self._cluster.staging_book
        for batch in sorted(staging_book.done):
            self._check_done(batch, staging_book.batches[batch])
        newest: dict[tuple[str, str], tuple[int, int]] = {}  # by source and writer: batch, and its last position
        for (batch, share), publication in sorted(self._seen.items(), key=lambda seen: seen[0]):
            for destination, tokens in publication.tokens.items():
                if share not in ("", destination):
                    continue
                for token in tokens:
                    book.sent[token].is_confirmed = True
                for source in book.covered:
                    if source.partition("/")[0] == destination:
                        self._check_source(batch, source, tokens, newest)

    def _check_done(self, batch: BatchName, publications: list[Publication]) -> None:
        shares = {self._share(batch, destination) for publication in publications for destination in publication.tokens}
        for share in sorted(shares - self._seen.keys()):
            if all(self._is_owed(publication, share[1]) for publication in publications):
                raise Violation(self.name, f"batch {batch} was said to be published, and nothing of it came")

    def _is_owed(self, publication: Publication, share: str) -> bool:
        """Whether anything of it belongs to a queue, or to a subscription that was there before it was staged."""
        book = self._cluster.book
        return any(
            source == destination or book.sent[tokens[0]].at > since
            for destination, tokens in publication.tokens.items()
            if share in ("", destination)
            for source, since in book.covered.items()
            if source.partition("/")[0] == destination
        )

    def _check_source(
        self, batch: BatchName, source: str, tokens: list[int], newest: dict[tuple[str, str], tuple[int, int]]
    ) -> None:
        """A subscription that began before has all of it, in its order and with nothing between; another has none."""
        writer, number = batch
        positions = [self._positions.get((source, token)) for token in tokens]
        first = positions[0]
        if first is None and not any(positions):
            return
        if first is None or positions != list(range(first, first + len(tokens))):
            raise Violation(self.name, f"messages {tokens} of batch {batch} are in {source} at {positions}")
        earlier, last = newest.get((source, writer), (-1, -1))
        if first <= last:
            raise Violation(self.name, f"batch {batch} is in {source} at {first}, and batch {earlier} behind it")
        newest[source, writer] = (number, first + len(tokens) - 1)
