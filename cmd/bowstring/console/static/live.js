// The live view of what runs. One event a second brings all of it.
import { el, fill, text, size, bytes, count, dollars, percent, millis, duration, card, empty, table, bar } from "./dom.js";
import { parts, keys, stack, paint } from "./parts.js";
import { streams } from "./streams.js";
import { chart } from "./chart.js";
import { say, start } from "./main.js";

function figure(name) {
  const v = el("div.v", "–"), s = el("div.s");
  return { node: el("div.figure", el("div.k", name), v, s), v, s };
}

function show(f, number, unit, hint, bad) {
  fill(f.v, document.createTextNode(number), unit ? el("small", unit) : null);
  text(f.s, hint || "");
  f.node.classList.toggle("bad", Boolean(bad));
}

/** together adds up where the time of all streams goes. */
function together(list) {
  const sum = {};
  for (const p of parts) sum[p] = list.length ? list.reduce((a, s) => a + (s[p] || 0), 0) / list.length : 0;
  return sum;
}

const jobRow = (j) => [
  el("span", { title: j.job }, j.dataset), el("a.mono", { href: "#/job/" + encodeURIComponent(j.job) }, j.job.slice(0, 12)), count(j.streams), String(j.epoch),
  el("div.with", bar(j.progress, "Progress"), el("span", percent(j.progress))),
  j.epoch_left_s === null ? "–" : duration(j.epoch_left_s),
  j.epoch_left_s === null ? "–" : new Date(Date.now() + 1000 * j.epoch_left_s).toLocaleTimeString("sv").slice(0, 5), percent(j.spill_share),
];

export function live(main) {
  const f = Object.fromEntries(["Throughput", "Rows", "Streams", "Store latency", "From spill", "Window memory", "Trouble"].map((n) => [n, figure(n)]));
  const graph = chart(), list = streams();
  const all = stack("stack.tall"), limit = el("p.muted");
  const jobs = el("div"), cache = el("div"), tenants = el("div"), memory = el("div"), objects = el("div");
  const partial = el("p.muted", { hidden: true }, "You see your own streams. Figures of the whole server, jobs, cache and tenants are for its administrators.");
  const time = card("Where time goes", all, el("div.say", limit), keys());
  time.querySelector("header").append(el("span.muted", "all streams together"));
  const whole = [card("Jobs", jobs), el("div.cols", card("Cache", cache), card("Tenants", tenants))], shared = card("Clients on this node", memory), buckets = card("Buckets", objects);
  fill(main, el("h1", "Live"), partial, el("section.card.figures", { "aria-label": "Figures" }, Object.values(f).map((x) => x.node)),
    el("div.halves", graph.node, time), whole[0], list.node, whole[1], buckets, shared);
  graph.begin();
  say("", "connecting");

  function draw(v) {
    text(main.querySelector("h1"), v.draining ? "Live – draining" : "Live");
    partial.hidden = v.all;
    for (const w of whole) w.hidden = !v.all;
    for (const n of ["Store latency", "From spill", "Window memory", "Trouble"]) f[n].node.hidden = !v.all;
    const [rate, unit] = size(v.bytes_per_s);
    show(f.Throughput, rate, unit + "/s", bytes(v.bytes) + " since the start");
    show(f.Rows, count(v.rows_per_s), "/s", count(v.rows) + " since the start");
    show(f.Streams, count(v.streams.length), "", count(v.jobs.length) + (v.jobs.length === 1 ? " job" : " jobs"));
    show(f["Store latency"], millis(v.store_p99_us), "p99", v.store_p50_us ? "p50 " + millis(v.store_p50_us) + ", " + v.store_reads_in_flight + " in flight" : v.store_reads_in_flight + " reads in flight");
    show(f["From spill"], percent(v.spill_share), "", v.spill_budget_bytes ? bytes(v.spill_held_bytes) + " of " + bytes(v.spill_budget_bytes) : "no spill");
    show(f["Window memory"], percent(v.window_used_bytes / Math.max(1, v.window_limit_bytes)), "", bytes(v.window_used_bytes) + " of " + bytes(v.window_limit_bytes));
    show(f.Trouble, count(v.lost), "lost", count(v.failed_reads) + " failed reads, " + count(v.hedges) + " hedges", v.lost > 0);
    buckets.hidden = !v.buckets.length;
    if (v.buckets.length) fill(objects, table(["Bucket", "#Requests", "#Requests/s", "#Allowed/s", "#Waiting", "#Bytes/s", "#First byte, p99", "#Errors", "#Refused", "#Cost", "Prices of"], v.buckets.slice(0, 200).map((b) => [b.bucket, count(b.requests), count(b.requests_per_s),
      b.limit_per_s ? count(b.limit_per_s) : "any", count(b.waiting), bytes(b.bytes_per_s), millis(b.first_byte_p99_us), count(b.errors), count(b.throttled), dollars(b.cost_usd), b.priced || "none known"])));
    const m = v.shm;
    shared.hidden = !m;
    if (m) fill(memory, table(["#Rings", "#Memory", "#Held by clients", "#Bytes/s", "#Waits/s", "#By TCP/s", "#Refused", "#Abandoned", "#Pinned", "#Referred/s", "#Copied/s"], [[count(m.rings), bytes(m.bytes), bytes(m.held_bytes), bytes(m.sent_bytes_per_s),
      count(m.waits_per_s), count(m.inline_per_s), count(m.refused), count(m.abandoned),
      bytes(m.pinned_bytes), bytes(m.referred_bytes_per_s), count(m.copied_per_s)]]));
    const sum = together(v.streams);
    paint(all, sum);
    const most = parts.reduce((a, b) => (sum[b] > sum[a] ? b : a));
    text(limit, !v.streams.length ? "No stream runs." : sum[most] < 0.01 ? "Nothing waits." : advice[most]);
    graph.update(v);
    list.update(v.streams);
    fill(jobs, v.jobs.length ? table(["Dataset", "Job", "#Streams", "#Epoch", "Progress of the epoch", "#Left", "#Ends at", "#From spill"], v.jobs.slice(0, 200).map(jobRow))
      : empty("No job runs", "A job is a request that streams read: it is listed while one of them runs."));
    fill(cache, v.cache.length ? table(["Dataset", "#Held", "From spill", "#Store reads saved", "#Time saved"], v.cache.slice(0, 200).map((c) => [c.dataset, bytes(c.bytes),
      el("div.with", bar(c.hit_share, "From spill"), el("span", percent(c.hit_share))), bytes(c.saved_bytes), duration(c.saved_s)]))
      : v.spill_budget_bytes ? empty("The spill is empty", "It fills with what jobs will read again.") : empty("No spill", "serve --spill DIR keeps what jobs read again on this machine's disk."));
    fill(tenants, v.tenants.length ? table(["Tenant", "#Streams", "#Bytes/s", "Share", "#Total"], v.tenants.map((t) => [t.others ? "all others" : t.tenant || "no tenant", count(t.streams),
      bytes(t.bytes_per_s), el("div.with", bar(t.share, "Share"), el("span", percent(t.share))), bytes(t.bytes)])) : empty("No calls yet", "Calls are counted here by tenant."));
  }

  let heard = Date.now(), next = null;
  const source = new EventSource("api/live");
  const paintSoon = (v) => {
    if (!next) requestAnimationFrame(() => { const view = next; next = null; if (!document.hidden || !drawn) { drawn = true; draw(view); } });
    next = v;
  };
  let drawn = false;
  source.addEventListener("history", (e) => graph.history(JSON.parse(e.data)));
  source.addEventListener("view", (e) => {
    heard = Date.now();
    const v = JSON.parse(e.data);
    say(v.draining ? "lost" : "live", v.draining ? "draining" : "live");
    paintSoon(v);
  });
  source.addEventListener("end", () => { source.close(); start(); });
  source.addEventListener("error", () => {
    say("lost", "reconnecting");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (alive) start(); }, 1500);
  });
  let alive = true;
  const stale = setInterval(() => { if (Date.now() - heard > 6000) say("lost", "no answer"); }, 2000);
  return () => { alive = false; source.close(); clearInterval(stale); graph.end(); };
}

const advice = {
  store: "Most of the time, streams wait for the store: a spill, more replicas or a nearer store help.",
  spill: "Most of the time, streams wait for the spill: its disk is the limit.",
  nodes: "Most of the time, streams wait for other nodes: the network between them is the limit.",
  window: "Most of the time, buffers are full: consumers are slower than the server.",
  encode: "Most of the time goes into encoding batches: the CPUs of this machine are the limit.",
  operators: "Most of the time, streams wait for samples being made: the CPUs of this machine are the limit.",
  network: "Most of the time, bytes are on their way: the network is the limit.",
  consumer: "Most of the time, streams wait for their consumers: data comes as fast as it is used.",
};
