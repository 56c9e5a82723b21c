"""The console, in a real Chromium: each view, what it may not show, what it may not do, and who may use it."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import urllib.error
import urllib.request
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import chromium
import photos
import pyarrow as pa
import pyarrow.flight as fl
import pytest
import screenshots
from axe_core_python.sync_playwright import Axe
from conftest import ROOT
from node import Node
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright
from rounds import rounds
from wire import PATIENCE, command, ticket

Run = Callable[..., subprocess.CompletedProcess[str]]

# The first test may have to install the browser.
pytestmark = pytest.mark.slow

# Five seconds, as it is otherwise, may be too few beside other tests.
expect.set_options(timeout=1000 * PATIENCE)

SCRIPT = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
PAGE = b"<!doctype html><script>top.document.title='owned'</script>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="top.document.title=\'owned\'"></svg>'
RULES = """
rules:
  - {principals: [root], datasets: ["*"], rights: [admin]}
  - {principals: [alice], datasets: [photos], rights: [read], where: "label < 2"}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        path = chromium.install()
    except RuntimeError as why:
        pytest.fail(str(why))
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=1000 * PATIENCE
        )
        yield found
        found.close()


class Served(NamedTuple):
    """A server with its console."""

    node: Node
    url: str
    folder: Path


def sound() -> bytes:
    """A tenth of a second of silence."""
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(8000)
        w.writeframes(struct.pack("<h", 0) * 800)
    return out.getvalue()


def put(client: fl.FlightClient, table: pa.Table, **request: Any) -> None:
    writer, _ = client.do_put(command(put=request), table.schema)
    with writer:
        writer.write_table(table)


@pytest.fixture(scope="module")
def store(bowstring: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few photographs, and data that means ill."""
    root = tmp_path_factory.mktemp("console")
    for _ in photos.write_all(root / "photos", 60, workers=2):
        pass
    bowstring("import", root / "photos", "photos", "--store", root / "store")
    bowstring("tag", "--store", root / "store", "photos@1", "prod")
    return root / "store"


@pytest.fixture(scope="module")
def served(binary: Path, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Anybody may do everything, and some of the data means ill."""
    folder = tmp_path_factory.mktemp("open")
    flags = ["--admin=127.0.0.1:0", "--max-streams=2048"]
    with Node(binary, store, *flags, log=folder / "log") as node:
        with fl.connect(node.url) as client:
            hostile = pa.table({SCRIPT: [SCRIPT, "b"], "x": [1, 2], "image": [PAGE, SVG]})
            put(client, hostile, dataset="hostile", blobs=["image"], media={"image": "image"})
            put(
                client,
                pa.table({"n": [1.5], "audio": [sound()]}),
                dataset="sounds",
                blobs=["audio"],
                media={"audio": "audio"},
            )
        yield Served(node, screenshots.admin_of(folder / "log"), folder)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with watched(browser) as context:
        yield context.new_page()


class watched:  # noqa: N801
    """A browser context that fails the test if a page breaks its policy, or asks another host."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context: BrowserContext = browser.new_context(viewport={"width": 1400, "height": 900}, **options)
        self.context.set_default_timeout(1000 * PATIENCE)
        self.wrong: list[str] = []
        self.hosts: set[str] = set()

    def __enter__(self) -> BrowserContext:
        self.context.on("page", self.watch)
        return self.context

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda e: self.wrong.append(str(e)))
        page.on("console", lambda m: self.wrong.append(m.text) if "Content Security Policy" in m.text else None)
        page.on("request", lambda r: self.hosts.add(r.url.split("/")[2]))

    def __exit__(self, kind: object, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert self.wrong == []
            assert len(self.hosts) == 1, self.hosts


def accessible(page: Page) -> None:
    """Fail for what axe finds."""
    found = Axe().run(page)["violations"]
    assert found == [], json.dumps([(v["id"], [n["html"][:200] for n in v["nodes"]][:3]) for v in found], indent=1)


def test_live(served: Served, page: Page) -> None:
    with fl.connect(served.node.url) as client:
        reader = client.do_get(
            ticket(dataset="photos", batch=1, batch_bytes=1, rank=0, epochs=200), header(b"bowstring-tenant", b"vision")
        )
        reader.read_chunk()
        page.goto(served.url)
        expect(page.locator("#state")).to_have_text("live")
        row = page.get_by_role("table", name="Streams").get_by_role("row").nth(1)
        expect(row).to_contain_text("photos@1")
        expect(row).to_contain_text("vision")
        expect(page.get_by_role("region", name="Jobs")).to_contain_text("photos@1")
        expect(page.get_by_role("region", name="Tenants")).to_contain_text("vision")
        expect(page.get_by_role("region", name="Cache")).to_contain_text("No spill")
        expect(page.get_by_role("img", name="Throughput over the last minutes").locator("canvas")).to_be_visible()
        accessible(page)
        reader.cancel()
        expect(page.get_by_text("No stream runs", exact=True)).to_be_visible()


def header(name: bytes, value: bytes) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(name, value)])


def test_datasets(served: Served, page: Page) -> None:
    page.goto(served.url + "#/datasets")
    expect(page.get_by_role("row")).to_have_count(4)
    accessible(page)
    page.get_by_role("link", name="photos").click()
    expect(page.get_by_role("region", name="Schema")).to_contain_text("10 classes")
    expect(page.locator("#snapshot")).to_contain_text("prod")
    accessible(page)
    page.get_by_role("link", name="Values").click()
    expect(page.get_by_role("region", name="label", exact=True)).to_contain_text("astronaut")
    expect(page.get_by_role("img", name="Histogram").first).to_be_visible()
    accessible(page)
    page.get_by_role("link", name="Snapshots").click()
    expect(page.get_by_role("region", name="Snapshots and tags")).to_contain_text("prod")


def test_samples(served: Served, page: Page) -> None:
    page.goto(served.url + "#/dataset/photos/samples")
    expect(page.locator(".tile")).to_have_count(48)
    expect(page.get_by_text("1 to 48 of 60")).to_be_visible()
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".tile")).to_have_count(12)
    page.get_by_label("Where").fill("label == 3 and width > 1")
    page.keyboard.press("Enter")
    expect(page.locator(".tile")).to_have_count(6)
    first = page.locator(".tile img").first
    expect(first).to_be_visible()
    shown = first.evaluate("i => i.decode().then(() => i.naturalWidth)")
    assert shown > 100
    page.get_by_label("Where").fill("width > 1 and lable < 3")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text('did you mean "label"')
    expect(page.locator(".place mark")).to_have_text("lable")
    accessible(page)


@pytest.mark.parametrize("view", screenshots.VIEWS, ids=lambda view: view.name)
def test_the_views_of_the_pictures_are_there(served: Served, page: Page, view: screenshots.View) -> None:
    """The pages show pictures of these views. Nothing is compared but the names of their regions."""
    with fl.connect(served.node.url) as client:
        rates = {"store": {"latency_ms": 20, "bytes_per_s": 1_000_000}}
        list(client.do_action(("calibrate", json.dumps({"rates": rates}).encode())))
    screenshots.shown(page, served.url, view)
    for scheme in screenshots.SCHEMES:
        picture = ROOT / "docs" / "console" / f"{view.name}-{scheme}.webp"
        assert picture.stat().st_size <= screenshots.MOST_BYTES
        assert f"console/{picture.name}" in (ROOT / "docs" / "operating" / "watch.md").read_text()


def test_explain(served: Served, page: Page) -> None:
    page.goto(served.url + "#/dataset/photos/explain")
    with fl.connect(served.node.url) as client:
        rates = {"store": {"latency_ms": 20, "bytes_per_s": 1_000_000}}
        list(client.do_action(("calibrate", json.dumps({"rates": rates}).encode())))
        page.get_by_label("Epochs", exact=True).fill("3")
        page.get_by_role("button", name="Explain").click()
        expect(page.get_by_role("region", name="Prediction")).to_contain_text("link: store.bytes_per_s")
        expect(page.get_by_role("region", name="Epochs, and more nodes").get_by_role("row")).to_have_count(7)
        expect(page.get_by_role("region", name="It runs")).to_have_count(0)
        accessible(page)
        # A job of the same request runs, whose consumer takes one batch and no more.
        reader = client.do_get(ticket(dataset="photos", snapshot=1, batch=64, epochs=1000))
        reader.read_chunk()
        page.get_by_role("button", name="Explain").click()
        expect(page.get_by_role("region", name="It runs")).to_contain_text("Compared with the prediction")
        accessible(page)
        reader.cancel()


def test_sample_and_its_history(served: Served, page: Page) -> None:
    page.goto(served.url + "#/dataset/photos/samples")
    page.locator(".tile").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("first seen")
    expect(dialog).to_contain_text("astronaut")
    accessible(page)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.goto(served.url + "#/dataset/sounds/samples")
    page.locator(".tile").first.click()
    seconds = page.locator("audio").evaluate(
        "a => new Promise(ok => { if (a.readyState) ok(a.duration); else a.onloadedmetadata = () => ok(a.duration); })"
    )
    assert seconds == pytest.approx(0.1)


def test_what_means_ill_stays_text(served: Served, page: Page) -> None:
    for view in ("", "/samples", "/values", "/snapshots"):
        page.goto(served.url + "#/dataset/hostile" + view)
        expect(page.get_by_role("heading", name="hostile")).to_be_visible()
        expect(page.locator("#main")).not_to_contain_text("Loading")
        if view != "/snapshots":
            expect(page.locator("#main").get_by_text(SCRIPT).first).to_be_visible()
        assert page.title().startswith("hostile")
        assert page.locator("#main script, #main img[src=x]").count() == 0
    # Bytes that are no image are not sent, whatever the column says; a browser that requests them gets no page.
    for position in (0, 1):
        answer = page.request.get(f"{served.url}api/blob?dataset=hostile&column=image&position={position}")
        assert answer.status == 415
        assert answer.headers["content-type"] == "application/json"
    answer = page.request.get(f"{served.url}api/blob?dataset=photos&column=image&position=0")
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_policy(served: Served, page: Page) -> None:
    answer = page.goto(served.url)
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'; script-src 'self'" in policy
    assert page.locator("script:not([src]), style").count() == 0
    # Other sites, and names that are not the server's own, get nothing.
    for headers in ({"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        request = urllib.request.Request(served.url + "api/datasets", headers=headers)  # noqa: S310
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=PATIENCE)  # noqa: S310
        assert refused.value.code == 403, headers


def test_many_streams(served: Served, page: Page) -> None:
    count = rounds(300, 1000)
    page.add_init_script(chromium.LINES)
    with (
        fl.connect(served.node.url) as one,
        fl.connect(served.node.url, generic_options=[("grpc.use_local_subchannel_pool", 1)]) as two,
    ):
        request = ticket(dataset="photos", columns=["label"], batch=1, batch_bytes=1, rank=0, epochs=1000000)
        readers = [client.do_get(request) for client in (one, two) for _ in range(count // 2)]
        page.goto(served.url)
        streams = page.get_by_role("table", name="Streams")
        expect(streams).to_have_attribute("aria-rowcount", str(count + 1))
        scroll = page.get_by_role("region", name="List of streams")
        for top in [*range(0, 34 * count, 1700), 10**6]:
            scroll.evaluate("(n, top) => { n.scrollTop = top; }", top)
            page.evaluate("() => new Promise(requestAnimationFrame)")
        expect(streams.locator(f'[aria-rowindex="{count + 1}"]')).to_be_visible()
        page.get_by_label("Filter streams").fill("nothing has this")
        expect(streams).to_have_attribute("aria-rowcount", "1")
        lines = page.evaluate("window.lines")
        assert 10 < lines["most"] < 40, lines  # what is in sight
        assert lines["made"] < 80, lines  # lines are used again, wherever one scrolls to
        for reader in readers:
            reader.cancel()


def test_keyboard(served: Served, page: Page) -> None:
    page.goto(served.url + "#/datasets")
    expect(page.get_by_role("link", name="photos")).to_be_visible()
    press_to(page, "photos")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="photos")).to_be_visible()
    press_to(page, "Samples")
    page.keyboard.press("Enter")
    expect(page.locator(".tile")).to_have_count(48)
    press_to(page, "astronaut")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".tile").first).to_be_focused()


def press_to(page: Page, name: str) -> None:
    """Press Tab until what is focused has the name."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip().startswith(name):
            return
    pytest.fail(f"{name} cannot be reached by Tab")


def test_dark(served: Served, browser: Browser) -> None:
    shots = []
    for scheme in ("light", "dark"):
        with watched(browser, color_scheme=scheme, reduced_motion="reduce") as context:
            page = context.new_page()
            page.goto(served.url + "#/dataset/photos")
            expect(page.get_by_role("region", name="Schema")).to_be_visible()
            accessible(page)
            colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
            shots.append((colour, len(page.screenshot())))
    assert shots[0][0] != shots[1][0]
    assert min(size for _, size in shots) > 10000


def test_rights(binary: Path, bowstring: Run, store: Path, browser: Browser, tmp_path: Path) -> None:
    tokens, rules = tmp_path / "tokens.json", tmp_path / "rules.yaml"
    rules.write_text(RULES)
    alice, root = (
        bowstring("token", "create", "--tokens", tokens, "--principal", who).stdout.strip() for who in ("alice", "root")
    )
    for name in ("photos", "secret"):
        bowstring("import", store.parent / "photos", name, "--store", tmp_path / "store")
    flags = ["--admin=127.0.0.1:0", f"--tokens={tokens}", f"--rules={rules}"]
    with Node(binary, tmp_path / "store", *flags, log=tmp_path / "log") as node, watched(browser) as context:
        url = screenshots.admin_of(tmp_path / "log")
        page = context.new_page()
        page.goto(url + "#/dataset/photos/samples")
        accessible(page)
        page.get_by_label("Token").fill(alice[:-1] + ("A" if alice[-1] != "A" else "B"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not one that lets anybody in")
        page.get_by_label("Token").fill(alice)
        page.keyboard.press("Enter")
        expect(page.locator("#who")).to_have_text("alice")
        expect(page.get_by_text("1 to 12 of 12")).to_be_visible()  # two classes of ten
        assert page.request.get(url + "api/blob?dataset=photos&column=image&position=59").status in (400, 404)
        assert page.request.get(url + "api/dataset?dataset=secret").status == 404
        cookie = context.cookies()[0]
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        assert alice not in json.dumps([cookie, page.content()])
        # A stream of another's is not there, and nothing of the whole server.
        with fl.connect(node.url) as client:
            reader = client.do_get(
                ticket(dataset="photos", batch=1, batch_bytes=1, rank=0, epochs=200),
                header(b"authorization", b"Bearer " + root.encode()),
            )
            reader.read_chunk()
            page.goto(url + "#/live")
            expect(page.get_by_text("You see your own streams")).to_be_visible()
            expect(page.get_by_text("No stream runs", exact=True)).to_be_visible()
            expect(page.get_by_role("region", name="Tenants")).to_have_count(0)
            # The button and the end of the live view both draw the form: the later answer empties no field.
            asked: list[Route] = []
            hold = lambda r: asked.append(r) if r.request.method == "GET" and len(asked) < 2 else r.continue_()  # noqa: E731
            page.route("**/api/session", hold)
            page.get_by_role("button", name="Sign out").click()
            while len(asked) < 2:
                page.wait_for_timeout(10)  # handles what has come
            asked[0].continue_()
            page.get_by_label("Token").fill(root)
            with page.expect_response("**/api/session"):
                asked[1].continue_()
            page.evaluate("() => new Promise(requestAnimationFrame)")
            expect(page.get_by_label("Token")).to_have_value(root)
            page.keyboard.press("Enter")
            expect(page.get_by_role("table", name="Streams").get_by_role("row").nth(1)).to_contain_text("photos@1")
            reader.cancel()
        # A token that is revoked ends what it let in.
        bowstring("token", "revoke", "--tokens", tokens, root.split("_")[1])
        expect(page.get_by_label("Token")).to_be_visible()
