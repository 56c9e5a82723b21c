"""Selections by `where`, by SQL and by positions."""

from __future__ import annotations

from soak import content
from soak.client import Reader


class Client(Reader):
    """Each turn has another condition."""

    def turn(self, number: int) -> None:
        label, least = number % content.LABELS, self.random.randrange(100)
        chosen = [k for k in range(content.SAMPLES) if k % content.LABELS == label and len(content.tokens(k)) >= least]
        condition = f"label == {label} and n_tokens >= {least}"
        sql = f"label = {label} AND n_tokens >= {least}"
        if number % 3 == 2:
            rows = self.random.sample(range(content.SAMPLES), 40)
            taken = self.until_done(lambda: self.client.dataset(content.DATASET).take(rows, columns=["key", "image"]))
            for batch in taken.to_batches():
                self.found["rows"] += batch.num_rows
                self.found["wrong"] += content.wrong(batch)
            self.found["wrong"] += taken["key"].to_pylist() != rows
            return
        self.epoch(
            lambda: (self.dataset().where(sql=sql) if number % 3 else self.dataset().where(condition)).shuffle(number),
            chosen,
            epoch=number,
        )
