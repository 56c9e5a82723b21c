// The cluster: its nodes, what they own, and the reads between them, as this node knows
// it.
import { get } from "./api.js";
import { el, fill, bytes, count, percent, millis, date, card, empty, table, bar } from "./dom.js";

export function cluster(main) {
  const stop = new AbortController();
  const body = el("div", el("p.muted", "Loading"));
  fill(main, el("h1", "Cluster"), body);
  async function ask() {
    try {
      const got = await get("cluster", {}, stop.signal);
      draw(body, got);
    } catch (e) {
      if (e.name !== "AbortError") fill(body, el("div.error", { role: "alert" }, e.message));
    }
  }
  const again = setInterval(() => { if (!document.hidden) ask(); }, 3000);
  ask();
  return () => { stop.abort(); clearInterval(again); };
}

function draw(body, got) {
  const c = got.cluster;
  if (!c) return fill(body, empty("No cluster", "This server is a node of none, or its cluster is for its administrators to see. serve --cluster NAME makes it one."));
  const first = Object.fromEntries((c.shares || []).map((s) => [s.node, s.share]));
  const second = Object.fromEntries((c.shares || []).map((s) => [s.node, s.second || 0]));
  const way = Object.fromEntries((c.peers || []).map((p) => [p.node, p]));
  const sent = Object.fromEntries((c.sent || []).map((l) => [l.node, l]));
  const state = (n) => {
    const p = way[n.id];
    return n.id === c.node ? "this node" : !p ? "not asked" : !p.up ? "no connection" : p.silent ? "silent" : "up";
  };
  const measure = (part, label) => el("div.with", bar(part, label), el("span", percent(part)));
  const row = (n, what) => [n.id, el("span.mono", n.address), n.zone || "–", count(n.weight || 0), bytes(n.capacity || 0),
    measure(first[n.id], "Share of keys"), measure(second[n.id], "Second owner"), what];
  const nodes = table(["Node", "Address", "Zone", "#Ranks", "#Spill", "Share of keys", "Second owner", "State"],
    [...c.nodes.map((n) => row(n, state(n))), ...(c.leaving || []).map((n) => row(n, leaving(n.draining)))]);
  const others = [...new Set([...Object.keys(way), ...Object.keys(sent)])].sort();
  const traffic = table(["Node", "#Asked", "#Came", "#Bytes in", "#Refused", "#Takes up to", "#Sent", "#Bytes out"], others.map((name) => {
    const p = way[name] || {}, l = sent[name] || {};
    return [name || "others", count(p.asked || 0), count(p.answered || 0), bytes(p.bytes || 0), count(p.refused || 0), millis(p.typical_us || 0), count(l.blobs || 0), bytes(l.bytes || 0)];
  }));
  fill(body, card("Nodes of " + c.cluster, el("p.muted", "View " + (c.view || "").slice(0, 16) + ", read " + date(c.read) + (c.error ? "" : ".")),
    c.error ? el("div.error", { role: "alert" }, c.error) : null, nodes),
  zones(c, first, second),
  card("Reads between nodes", el("p.muted", "As " + c.node + " has counted it since it began: what it got from others, and what it sent them. For " + count(got.stood_in) + " blobs of others the store stood in."),
    others.length ? traffic : empty("Nothing yet", "Blobs go between nodes when a stream here wants what another node owns.")));
}

/** leaving says how far a node is that drains. */
function leaving(d) {
  if (d.done) return "drained";
  return "draining since " + date(d.since) + ": " + count(d.streams) + " streams, handed over " + bytes(d.bytes) + " of " + bytes(d.held);
}

/** zones are what the nodes of each zone own together, and what this node has sent there; nothing where all are in one. */
function zones(c, first, second) {
  const sent = Object.fromEntries((c.egress?.zones || []).map((z) => [z.zone || "", z]));
  const names = [...new Set([...c.nodes, ...(c.leaving || [])].map((n) => n.zone || ""))].sort();
  if (names.length < 2) return null;
  return card("Zones", el("p.muted", "A blob comes into a zone once, as long as a node there keeps it. " + c.node + " has counted what it sent."),
    table(["Zone", "Nodes", "#Share of keys", "#Second owner", "#Sent", "#Refused"], names.map((name) => {
      const own = c.nodes.filter((n) => (n.zone || "") === name).map((n) => n.id);
      const sum = (shares) => percent(own.reduce((all, id) => all + (shares[id] || 0), 0));
      const z = sent[name] || {};
      return [name || "–", own.join(", ") || "–", sum(first), sum(second), bytes(z.bytes || 0), count(z.refused || 0)];
    })));
}
