"""frameworks: the trainers that people use, on two ranks: each sample once an epoch, orders that differ, exact resumes.

The programs are those of examples/trainers, as they are. Each runs until it is stopped in the middle of its second
epoch, and then goes on in new processes to the end of it: Grain, and FSDP with torch's own checkpoints, on three ranks.
"""

from __future__ import annotations

from harness import Context, Figure, Result, emit, needs, package
from node import Node
from programs import PROGRAMS, Found, judged, stop_and_go_on, trained_on
from samples import image_folder
from sizes import sized

COUNT, SIZE = 600, 4_000
BATCH = 50  # so that there are 12 steps, and none is padded
STOP = 15  # steps
PROGRAMS_RUN = sized(len(PROGRAMS), smoke=1)


@needs(package("torch"))
def run(context: Context) -> Result:
    """Each framework, one after another."""
    store, source = context.folder / "store-frameworks", context.folder / "images-frameworks"
    image_folder(source, COUNT, SIZE)
    context.bowstring("import", "--store", store, source / "images", "small")
    found: dict[str, Found] = {}
    with Node(context.binary, store) as node:
        wanted = set(range(COUNT))
        for name, program in list(PROGRAMS.items())[:PROGRAMS_RUN]:
            folder = context.folder / f"trainer-{program}"
            stop_and_go_on(program, node.url, "small", folder, STOP, batch=BATCH, split="")
            found[name] = judged(trained_on(folder), wanted)
            emit(case="frameworks", framework=name, **vars(found[name]))
    return Result(
        "frameworks",
        [
            Figure("lost", sum(f.lost for f in found.values())),
            Figure("doubled", sum(f.doubled for f in found.values())),
            Figure("same_order_epochs", sum(f.same_order_epochs for f in found.values())),
            Figure("frameworks", len(found)),
        ],
    )
