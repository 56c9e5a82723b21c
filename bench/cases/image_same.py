"""image_same: pixels of the operators alone beside those of Pillow 12.1 and of torchvision on tensors, box by box."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import Context, Figure, Result
from sizes import sized

from .image_ops import folder, pillow12

EPOCHS = sized(3, smoke=1)
STEPS = [
    {"name": "Decode"},
    {"name": "RandomResizedCrop", "params": {"size": 224}},
    {"name": "RandomHorizontalFlip"},
]


def results(context: Context) -> Path:
    """Have the operators make every photograph's crop of some epochs, and list what was drawn."""
    binary = context.folder / "apply"
    subprocess.run(["go", "build", "-o", binary, "./tests/images/apply"], cwd=context.root, check=True)  # noqa: S607
    asked: list[dict[str, Any]] = []
    for epoch in range(EPOCHS):
        for position, path in enumerate(sorted(folder(context).glob("*.jpg"))):
            key = {"Seed": 7, "Epoch": epoch, "Position": position}
            out = context.folder / f"result-{epoch}-{position}.rgb"
            asked.append({"in": str(path), "out": str(out), "steps": STEPS, "Key": key})
    text = "".join(json.dumps(request) + "\n" for request in asked)
    done = subprocess.run([binary], input=text, check=True, capture_output=True, text=True)
    lines = []
    for request, answer in zip(asked, map(json.loads, done.stdout.splitlines()), strict=True):
        if answer["error"]:
            raise RuntimeError(answer["error"])
        drawn = {d["Step"]: {v["Name"]: int(v["Number"]) for v in d["Values"]} for d in answer["drawn"]}
        box = [drawn[1][name] for name in ("left", "top", "width", "height")]
        lines.append(json.dumps({"in": request["in"], "out": request["out"], "box": box, "flip": drawn[2]["flip"]}))
    listed = context.folder / "image_same.jsonl"
    listed.write_text("\n".join(lines))
    return listed


def compare(context: Context, side: str, listed: Path) -> dict[str, int]:
    """The summary of all results of one side."""
    env = dict(os.environ)
    if side == "pillow":
        env["PYTHONPATH"] = str(pillow12(context))
    command: list[str | Path] = [sys.executable, context.root / "bench" / "image_pixels.py", side, listed]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def run(context: Context) -> Result:
    """Bytes of Pillow that are others: none. For torchvision on tensors: a few, by one."""
    listed = results(context)
    exact, near = compare(context, "pillow", listed), compare(context, "torchvision", listed)
    return Result(
        "image_same",
        [
            Figure("differing", exact["differing"]),
            Figure("torchvision_most", near["most"]),
            Figure("torchvision_share", near["differing"] / near["total"]),
            # Bytes of torchvision's that are not the contract's with weights of 16 bits, as its kernel has them.
            Figure("torchvision_other", near["other"]),
        ],
        details={"bytes": exact["total"]},
    )
