"""README.md is short, and the page that answers a question is at most two links away from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT
from test_docs import anchors, links

QUESTIONS = {
    "How do I install it?": "README.md#install",
    "How do I read my own folder or bucket?": "docs/python/open.md#what-happens",
    "Does it run without a server to think of?": "docs/python/open.md#the-server",
    "How do I train with DDP?": "docs/frameworks.md#ddp",
    "How do I train with FSDP?": "docs/frameworks.md#fsdp-and-torchtitan",
    "How do I train with Lightning?": "docs/frameworks.md#lightning",
    "How do I train with Accelerate?": "docs/frameworks.md#accelerate",
    "How do I train with the Trainer of transformers?": "docs/frameworks.md#trainer-of-transformers",
    "How do I train with Ray Train?": "docs/frameworks.md#ray-train",
    "How do I train with JAX?": "docs/frameworks.md#jax",
    "How do I train with Grain?": "docs/frameworks.md#grain",
    "Which lines do I change when I come from WebDataset?": "docs/python/coming-from.md#webdataset",
    "Can I continue on another number of ranks?": "docs/python/torch.md#with-other-ranks-or-other-workers",
    "How do I choose samples by a condition?": "docs/where.md",
    "How do I mix datasets?": "docs/mixtures.md",
    "How do I sample by class?": "docs/sampling.md#by-class",
    "How do I pack tokens into sequences?": "docs/packing.md",
    "Where are images decoded?": "docs/operators.md#where-operators-run",
    "How do ranks of a tensor parallel group get the same batch?": "docs/parallel.md",
    "Why is my job slow?": "docs/troubleshooting.md#the-job-is-slow",
    "Why does my job hang?": "docs/troubleshooting.md#the-job-hangs",
    "Why does memory grow?": "docs/troubleshooting.md#memory-grows",
    "Why is the order wrong?": "docs/troubleshooting.md#the-order-is-wrong",
    "Why are ranks out of sync?": "docs/troubleshooting.md#ranks-are-out-of-sync",
    "Why was a call refused?": "docs/troubleshooting.md#a-call-is-refused",
    "When is something else better?": "docs/comparison.md#when-something-else-is-better",
    "How fast is it beside other loaders?": "docs/benchmarks.md#beside-other-loaders",
    "What does a bucket cost?": "docs/cost.md#prices",
    "How large a machine do I need?": "docs/cost.md#sizes",
    "How do I install a server?": "docs/operating/install.md#installing-it",
    "How do I turn on TLS and tokens?": "docs/operating/secure.md#tls-and-authentication",
    "How do I let a team read one dataset alone?": "docs/operating/secure.md#who-may-do-what",
    "How do several nodes share a cache?": "docs/operating/run.md#clusters",
    "Which timeouts are there?": "docs/operating/run.md#timeouts",
    "How do I watch a server?": "docs/operating/watch.md#watching-a-server",
    "What do I do about an alert?": "docs/operating/mend.md#alerts",
    "How do I back a store up?": "docs/operating/mend.md#backups",
    "How do I run it on Kubernetes?": "docs/kubernetes.md",
    "How do I report a vulnerability?": "SECURITY.md#reporting-a-vulnerability",
    "How do I propose a change?": "CONTRIBUTING.md#a-change",
}


def linked(page: Path) -> set[Path]:
    """The pages of the repository that a page links to."""
    targets = ((page.parent / link.partition("#")[0]).resolve() for link in links(page))
    return {target for target in targets if target.suffix == ".md"}


def test_two_hops_to_an_answer() -> None:
    readme = ROOT / "README.md"
    near = {readme} | linked(readme)
    reached = near.union(*(linked(page) for page in near))
    assert len(QUESTIONS) == 40
    for question, answer in QUESTIONS.items():
        name, _, anchor = answer.partition("#")
        assert ROOT / name in reached, question
        assert not anchor or anchor in anchors(ROOT / name), question


def test_the_readme_is_short() -> None:
    words = re.sub(r"<[^>]+>", "", (ROOT / "README.md").read_text()).split()
    assert len(words) <= 600


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md", "docs/operating/watch.md"])
def test_pictures_in_both_modes_are_there(page: str) -> None:
    """Markdown has no picture for dark pages, so these are in HTML, which no other test reads."""
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', (ROOT / page).read_text())
    assert pictures
    assert all(((ROOT / page).parent / picture).exists() for picture in pictures), pictures
