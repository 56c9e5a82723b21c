// How a job over the dataset would run, next to how one runs.
import { get } from "./api.js";
import { el, fill, bytes, count, dollars, percent, duration, card, table } from "./dom.js";

const fields = [ // name, label, what it is at first, least
  ["batch", "Batch", 64, 1], ["ranks", "Ranks", 1, 1], ["epochs", "Epochs", 1, 1],
  ["pace_ms", "Step, ms", 0, 0], ["nodes", "Nodes", "", 1], ["seed", "Seed", "", 0],
];

export function explain(body, about, name) {
  let stop = new AbortController();
  const inputs = Object.fromEntries(fields.map(([key, , first, least]) => [key, el("input", { id: "job-" + key, type: "number", min: least, value: first, step: 1 })]));
  const split = el("select", { id: "job-split" }, el("option", { value: "" }, "all"), about.splits.map((s) => el("option", { value: s.name }, s.name)));
  const problem = el("div", { id: "problem", role: "alert" });
  const answer = el("div.answer", { role: "status" });
  const form = el("form.card.ask.job", { "aria-label": "Which job", submit: (e) => { e.preventDefault(); ask(); } },
    el("div", el("label", { for: "job-split" }, "Split"), split),
    fields.map(([key, label]) => el("div", el("label", { for: "job-" + key }, label), inputs[key])),
    el("button.primary", { type: "submit" }, "Explain"));
  body.className = "";
  body.style.display = "grid";
  body.style.gap = "16px";
  fill(body, form, problem, answer);

  async function ask() {
    stop.abort();
    stop = new AbortController();
    const job = Object.fromEntries(Object.entries(inputs).map(([key, input]) => [key, input.value]));
    try {
      const got = await get("explain", { dataset: name, snapshot: about.snapshot, split: split.value, ...job }, stop.signal);
      fill(problem);
      show(answer, got);
    } catch (e) {
      if (e.name === "AbortError") return;
      fill(answer);
      fill(problem, el("div.error", e.message));
    }
  }
  ask();
  return () => stop.abort();
}

const rate = (r) => (r === null ? "any" : count(r)); // null where nothing limits

const time = (s) => (s > 0 && s < 1 ? Math.round(1000 * s) + " ms" : s === 0 ? "0 s" : duration(s));

function pairs(list) {
  return el("dl.pair", list.flatMap(([k, v]) => [el("dt", k), el("dd", v)]));
}

function show(answer, got) {
  const c = got.conditions, p = got.prediction;
  const row = (nodes, epoch, e) => [count(nodes), epoch, rate(e.samples_per_s), time(e.seconds), time(e.wait_s), percent(e.hit_share), e.limit + ": " + e.because];
  const rows = [row(c.nodes, "first", p.first_epoch), row(c.nodes, "later", p.later_epochs)];
  for (const m of p.more_nodes) rows.push(row(m.nodes, "first", m.first_epoch), row(m.nodes, "later", m.later_epochs));
  fill(answer,
    card("Prediction", pairs([
      ["Limited by", p.limit + ": " + p.because], ["Samples a second", rate(p.samples_per_s)], ["First batch after", time(p.first_batch_ms / 1000)],
      ["All epochs", time(p.seconds) + ", " + time(p.wait_s) + " of them waiting"],
      ["Smallest spill that is enough", p.smallest_cache_bytes === null ? "none, of whatever size" : bytes(p.smallest_cache_bytes) + " a node"],
      ["Smallest window that is enough", p.smallest_window_bytes === null ? "none, of whatever size" : bytes(p.smallest_window_bytes) + " a node"],
      ["Here now", bytes(c.cache_bytes) + " spill, " + bytes(c.window_bytes) + " window, " + bytes(c.held_bytes) + " of the job held"],
      ...(got.unknown.length ? [["Not measured, and taken to limit nothing", got.unknown.join(", ")]] : []),
    ])),
    got.running ? running(got.running) : null,
    got.bill ? bill(got.bill) : null,
    card("Epochs, and more nodes", table(["#Nodes", "Epoch", "#Samples/s", "#Takes", "#Waits", "#Hits", "Limit"], rows)));
}

function bill(b) {
  return card("What the buckets cost", pairs([
    ["Blobs in buckets", percent(b.share) + " of " + count(b.looked) + " in a sample"],
    ...b.buckets.map((x) => [x.bucket, (x.priced ? "prices of " + x.priced : "no prices known") + ", " + (x.requests_per_s ? count(x.requests_per_s) + " reads a second" + (x.learned ? ", as learned" : ", by what the cloud says") : "any number of reads") + "; to spare a request, " + bytes(x.gap_bytes) + " are read in vain at most"]),
    ["Prices", "list prices of " + b.prices_dated + ", bytes go " + b.transfer],
  ]), table(["All epochs", "#Requests", "#Bytes", "#For requests", "#For bytes", "#In all", "#At least"], b.plans.map((p) => [p.plan, count(p.requests), bytes(p.bytes), dollars(p.cost_usd.requests), dollars(p.cost_usd.transfer), dollars(p.cost_usd.total),
    p.hours ? duration(3600 * p.hours) : "any time"])));
}

function running(r) {
  return card("It runs", pairs([
    ["Measured", count(r.samples_per_s) + " samples/s"], ["Predicted", rate(r.predicted_samples_per_s) + " samples/s for the " + r.epoch + " epoch"],
    ["At these hits", rate(r.expected_samples_per_s) + " samples/s" + (r.hit_share === null ? "" : ", " + percent(r.hit_share) + " from the spill")],
    ["Limited by", r.limit], ["Waits", ["store", "spill", "peer", "encode", "consumer"].map((k) => k + " " + percent(r.wait[k])).join(", ")],
    ["Compared with the prediction", r.parted ? "differs by more than 15 %" : "as expected"],
    ...r.changed.map((x) => [x.rate, count(x.then) + " when it began, " + count(x.now) + " now"]),
  ]));
}
