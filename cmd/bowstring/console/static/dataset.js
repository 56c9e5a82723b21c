// A dataset: what is in a snapshot, how values are distributed, samples, snapshots.
import { get } from "./api.js";
import { origin, el, fill, bytes, count, date, card, table } from "./dom.js";
import { link, failed } from "./datasets.js";
import { samples } from "./samples.js";
import { distribution } from "./distribution.js";
import { explain } from "./explain.js";

const tabs = { "": "Overview", samples: "Samples", values: "Values", explain: "Explain", snapshots: "Snapshots" };

export function dataset(main, [name, tab = ""], parameters) {
  const stop = new AbortController();
  const body = el("div");
  let inner = () => {};
  const snapshot = parameters.get("snapshot") || "";
  const keep = snapshot ? { snapshot } : null;
  const chooser = el("select", { id: "snapshot", change: () => { location.hash = link(name, tab, chooser.value ? { snapshot: chooser.value } : null); } });
  fill(main, el("div.crumbs", el("a", { href: "#/datasets" }, "Datasets"), el("span.muted", { "aria-hidden": "true" }, "/"), el("h1", name),
    el("label", { for: "snapshot" }, "Snapshot"), chooser),
  el("nav.tabs", { "aria-label": "Parts of the dataset" }, Object.entries(tabs).map(([key, title]) =>
    el("a", { href: link(name, key, keep), "aria-current": key === tab ? "page" : null }, title))), body);
  get("dataset", { dataset: name, snapshot }, stop.signal).then((about) => {
    const tagged = (n) => about.tags.filter((t) => t.snapshot === n).map((t) => t.tag);
    const newest = Math.max(...about.snapshots);
    fill(chooser, about.snapshots.slice().reverse().map((n) => el("option", { value: n === newest ? "" : n, selected: n === about.snapshot }, "@" + n + (n === newest ? " newest" : "") + tagged(n).map((t) => " " + t).join(""))));
    const views = { "": overview, samples, values: distribution, explain, snapshots };
    const show = Object.hasOwn(views, tab) ? views[tab] : overview;
    inner = show(body, about, name, tagged) || inner;
  }).catch((e) => failed(body, e));
  return () => { stop.abort(); inner(); };
}

function overview(body, about) {
  body.className = "cols";
  fill(body,
    card("Snapshot", el("dl.pair", [
      ["Rows", count(about.rows)], ["Blobs", bytes(about.blob_bytes)], ["Created", date(about.created)], ["Source", origin(about.source)],
      ["Parent", about.parent ? "@" + about.parent : "–"], ["Manifest", about.manifest.chunks ? bytes(about.manifest.bytes) + " in " + count(about.manifest.chunks) + " chunks" : "–"],
    ].flatMap(([k, v]) => [el("dt", k), el("dd", v)])), about.splits.length ? table(["Split", "#Rows"], about.splits.map((s) => [s.name, count(s.rows)])) : null),
    card("Schema", table(["Column", "Type", "Kind", ""], about.columns.map((c) => [
      el("span.mono", c.name), el("span.mono.muted", c.type + (c.nullable ? ", nullable" : "")), c.media || c.kind,
      c.bytes ? bytes(c.bytes) : c.classes ? count(c.classes.length) + " classes" : "",
    ]))));
}

function snapshots(body, about, name, tagged) {
  fill(body, card("Snapshots and tags", table(["Snapshot", "Tags", ""], about.snapshots.slice().reverse().map((n) => [
    el("a", { href: link(name, "", { snapshot: n }) }, "@" + n), tagged(n).map((t) => el("span.tag", t)), n === about.snapshot ? "shown" : "",
  ])), about.tags.length ? null : el("p.muted", "No snapshot has a tag. bowstring tag gives one a name that stays where it is until it is moved.")));
}
