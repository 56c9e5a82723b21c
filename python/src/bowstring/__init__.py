"""Samples for training jobs from a Bowstring server, as Arrow record batches.

```python
import bowstring

photos = bowstring.open("photos/", split="train").where("width >= 400").shuffle(seed=7)
for batch in photos.batches(64, epoch=0):
    print(batch.num_rows, batch["label"][0])
```

`bowstring.torch`, `bowstring.grain`, `bowstring.ray` and `bowstring.polars` are not imported with it: they need the
libraries of their names, which the extras `[torch]`, `[grain]`, `[ray]` and `[polars]` install.
"""

from importlib.metadata import PackageNotFoundError, version

from bowstring._open import open  # noqa: A004 - as the modules of Python name it
from bowstring._requests.mesh import Mesh
from bowstring._rows.map import Mapped
from bowstring._rows.upload import AlterResult, IngestResult
from bowstring._transport.asynchronous import Asynchronous, asynchronous
from bowstring._transport.tls import Tls
from bowstring._write import Writer, write
from bowstring.client import Client, DatasetInfo, Datasets, WarmResult, connect
from bowstring.connection import Connection
from bowstring.dataset import Dataset
from bowstring.errors import (
    AlreadyExists,
    BowstringError,
    Cancelled,
    DataLoss,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    ServerError,
    TimedOut,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from bowstring.exchange import Exchange
from bowstring.forecast import Forecast
from bowstring.lineage import Held, RecordedJob
from bowstring.mixing import Mixture, SourceShare, mixture
from bowstring.plan import Plan, RankPlan
from bowstring.preview import Explanation, Preview
from bowstring.report import Report
from bowstring.stream import Batches

try:
    __version__ = version("bowstring")
except PackageNotFoundError:  # from the source tree
    __version__ = "0"

__all__ = [
    "AlreadyExists",
    "AlterResult",
    "Asynchronous",
    "Batches",
    "BowstringError",
    "Cancelled",
    "Client",
    "Connection",
    "DataLoss",
    "Dataset",
    "DatasetInfo",
    "Datasets",
    "Exchange",
    "Explanation",
    "Forecast",
    "Held",
    "IngestResult",
    "InvalidRequest",
    "LimitExceeded",
    "Mapped",
    "Mesh",
    "Mixture",
    "NotFound",
    "PermissionDenied",
    "Plan",
    "Preview",
    "RankPlan",
    "RecordedJob",
    "Report",
    "ServerError",
    "SourceShare",
    "TimedOut",
    "Tls",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "WarmResult",
    "Writer",
    "asynchronous",
    "connect",
    "mixture",
    "open",
    "write",
]
