// The lineage of jobs: those on record, and the samples of a step, by rank.
import { get } from "./api.js";
import { el, fill, count, card, empty, table, date } from "./dom.js";
import { tiles } from "./samples.js";

const size = 48;

export function jobs(main) {
  const stop = new AbortController();
  const body = el("div", el("p.muted", "Loading"));
  fill(main, el("h1", "Jobs on record"), body);
  get("lineage", {}, stop.signal).then((got) => fill(body, got.found.length
    ? card("Jobs", table(["Job", "Dataset", "#Streams", "#Rows", "#Ranks", "Order", "First stream", "Last stream"], got.found.map((j) => [
      el("a.mono", { href: "#/job/" + encodeURIComponent(j.job) }, j.job), j.dataset + "@" + j.snapshot, count(j.streams), j.rows ? count(j.rows) : "–", count(j.world), j.order, date(j.first), date(j.last)])))
    : empty("No job is on record", "A job is, from its first batch on, for as long as the record is kept.")))
    .catch((e) => { if (e.name !== "AbortError") fill(body, el("div.error", { role: "alert" }, e.message)); });
  return () => stop.abort();
}

export function job(main, [name], parameters) {
  let stop = new AbortController();
  const field = (id, label, value) => {
    const input = el("input", { id, type: "text", inputmode: "numeric", autocomplete: "off", value });
    return { input, node: el("div", el("label", { for: id }, label), input) };
  };
  const step = field("step", "Step", parameters.get("step") || "0");
  const epoch = field("epoch", "Epoch", parameters.get("epoch") || "");
  const rank = field("rank", "Rank", parameters.get("rank") || "");
  const problem = el("div", { role: "alert" }), found = el("div");
  const form = el("form.card.ask", { "aria-label": "Which step", submit: (e) => { e.preventDefault(); ask(); } },
    step.node, epoch.node, rank.node, el("button.primary", { type: "submit" }, "Show"));
  found.style.display = "grid";
  found.style.gap = "16px";
  fill(main, el("h1", "Job ", el("span.mono", name)), form, problem, found);

  async function ask() {
    stop.abort();
    stop = new AbortController();
    try {
      const got = await get("lineage", { job: name, step: step.input.value, epoch: epoch.input.value, rank: rank.input.value }, stop.signal);
      const about = await get("dataset", { dataset: got.found[0].dataset, snapshot: got.found[0].snapshot }, stop.signal);
      fill(problem);
      const standing = got.found.filter((p) => p.stands), rest = got.found.length - standing.length;
      fill(found, standing.map((p) => share(about, p, stop.signal)),
        rest ? el("p.muted", count(rest) + " pieces were handed out again later, and are not shown.") : null,
        got.record.others?.length ? el("p.muted", "Other nodes have records of their own: " + got.record.others.join(", ")) : null);
    } catch (e) {
      if (e.name === "AbortError") return;
      fill(found);
      fill(problem, el("div.error", e.message));
    }
  }
  ask();
  return () => stop.abort();
}

/** share shows a piece of what a rank got, a page at a time, in the order in which it was handed out. */
function share(about, p, signal) {
  const { tile, columns } = tiles(about, p.dataset);
  const grid = el("div.grid"), total = el("span.muted", { role: "status" });
  const back = el("button", { type: "button", click: () => show(page - 1) }, "Previous");
  const forth = el("button", { type: "button", click: () => show(page + 1) }, "Next");
  const faults = (p.faults || []).map((f) => el("li", "Position " + f.position + ": " + f.column + " could not be read" +
    (f.substitute === undefined ? ", and is null" : "; position " + f.substitute + " is in its place") + " (" + f.cause + ")"));
  const title = "Rank " + p.rank + " of " + p.world;
  const box = card(title, el("p.muted", "Step " + p.step + " of epoch " + p.epoch + " of " + p.dataset + "@" + p.snapshot + ", order " + p.stream.order + ", stream of " + date(p.stream.began)),
    faults.length ? el("ul", faults) : null, grid, el("div.pager", back, forth, total));
  let page = 0;
  async function show(to) {
    const some = p.positions.slice(to * size, (to + 1) * size);
    try {
      const got = await get("samples", { dataset: p.dataset, snapshot: p.snapshot, where: "position in [" + some.join(",") + "]", size, column: columns }, signal);
      const byPosition = new Map(got.rows.map((r) => [r.position, r]));
      page = to;
      fill(grid, some.map((at) => byPosition.get(at)).filter(Boolean).map(tile));
      total.textContent = count(to * size + 1) + " to " + count(to * size + some.length) + " of " + count(p.positions.length);
      back.disabled = to === 0;
      forth.disabled = (to + 1) * size >= p.positions.length;
    } catch (e) {
      if (e.name !== "AbortError") fill(grid, el("div.error", e.message));
    }
  }
  show(0);
  return box;
}
