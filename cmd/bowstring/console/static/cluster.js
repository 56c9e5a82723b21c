// The cluster: its nodes, what they own, and who lends to whom, as the node that is asked knows it.
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
  const share = Object.fromEntries((c.shares || []).map((s) => [s.node, s.share]));
  const way = Object.fromEntries((c.peers || []).map((p) => [p.node, p]));
  const lent = Object.fromEntries((c.lent || []).map((l) => [l.node, l]));
  const state = (n) => {
    const p = way[n.id];
    return n.id === c.node ? "this node" : !p ? "not asked" : !p.up ? "no connection" : p.silent ? "silent" : "up";
  };
  const nodes = table(["Node", "Address", "Zone", "#Ranks", "#Spill", "Share of keys", "State"], c.nodes.map((n) => [
    n.id, el("span.mono", n.address), n.zone || "–", count(n.weight || 0), bytes(n.capacity || 0),
    el("div.with", bar(share[n.id], "Share of keys"), el("span", percent(share[n.id]))), state(n)]));
  const others = [...new Set([...Object.keys(way), ...Object.keys(lent)])].sort();
  const traffic = table(["Node", "#Asked", "#Came", "#Bytes in", "#Refused", "#Takes up to", "#Sent", "#Bytes out"], others.map((name) => {
    const p = way[name] || {}, l = lent[name] || {};
    return [name || "others", count(p.asked || 0), count(p.answered || 0), bytes(p.bytes || 0), count(p.refused || 0), millis(p.typical_us || 0), count(l.blobs || 0), bytes(l.bytes || 0)];
  }));
  fill(body, card("Nodes of " + c.cluster, el("p.muted", "View " + (c.view || "").slice(0, 16) + ", read " + date(c.read) + (c.error ? "" : ".")),
    c.error ? el("div.error", { role: "alert" }, c.error) : null, nodes),
  card("Who lends to whom", el("p.muted", "As " + c.node + " has counted it since it began: what it got from others, and what it sent them. For " + count(got.stood_in) + " blobs of others the store stood in."),
    others.length ? traffic : empty("Nothing yet", "Blobs go between nodes when a stream here wants what another node owns.")));
}
