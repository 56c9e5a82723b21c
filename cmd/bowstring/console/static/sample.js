// One sample: its blobs, its metadata, and in which snapshots it is.
import { get, blobURL } from "./api.js";
import { el, fill, bytes, value, date, table } from "./dom.js";

export function detail(about, name, row, title) {
  const close = el("button", { type: "button", click: () => dialog.close() }, "Close");
  const past = el("div", el("p.muted", "Loading"));
  const dialog = el("dialog", { "aria-label": "Sample " + row.position }, el("div.in",
    el("div.head", el("h2", title), el("span.muted", "position " + row.position), close),
    el("div.detail", el("div", about.columns.filter((c) => c.kind === "blob").map((c) => blob(about, name, row, c))),
      el("dl.pair", Object.entries(row).flatMap(([k, v]) => [el("dt", k), el("dd.mono", cell(about, k, v))]))),
    el("div", el("h3", "History"), past)));
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (e) => { if (e.target === dialog) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
  if (!row.id) return void fill(past, el("p.muted", "Ids are not for you to see, and a sample is followed by its id."));
  get("history", { dataset: name, id: row.id }).then((h) => fill(past, history(h))).catch((e) => fill(past, el("div.error", e.message)));
}

function cell(about, column, v) {
  if (column.endsWith(".size") && typeof v === "number") return bytes(v);
  const classes = about.columns.find((c) => c.name === column)?.classes;
  return classes && classes[v] !== undefined ? v + " (" + classes[v] + ")" : value(v);
}

function blob(about, name, row, c) {
  const box = el("div.show");
  if (row[c.name + ".size"] === null) return fill(box, el("span.muted", c.name + " is null"));
  const src = blobURL({ dataset: name, snapshot: about.snapshot, position: row.position, column: c.name });
  const media = c.media === "audio" ? el("audio", { controls: true, preload: "metadata", src }) : el("img", { alt: c.name + " of the sample at position " + row.position, src });
  media.addEventListener("error", () => fill(box, el("span.muted", c.name + ": no image or sound that can be shown, " + bytes(row[c.name + ".size"] || 0))));
  return fill(box, media);
}

/** history lists snapshots, newest first, and marks what is not as in the one before. */
function history(h) {
  const rows = h.snapshots.map((s, i) => {
    const older = h.snapshots[i + 1];
    if (!s.row) return ["@" + s.snapshot, date(s.created), el("span.muted", "not in it"), ""];
    const changed = older?.row ? Object.keys(s.row).filter((k) => k !== "position" && JSON.stringify(s.row[k]) !== JSON.stringify(older.row[k])) : [];
    const words = !older ? (h.more ? "" : "first seen") : !older.row ? "added" : changed.length ? "changed: " + changed.join(", ") : "the same";
    return ["@" + s.snapshot, date(s.created), "position " + s.row.position + (s.row.split ? ", " + s.row.split : ""), el("span", { class: words === "the same" ? "muted" : "changed" }, words)];
  });
  return [table(["Snapshot", "Created", "Where", "What"], rows), h.more ? el("p.muted", "Older snapshots were not looked at.") : null];
}
