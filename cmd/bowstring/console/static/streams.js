// The list of streams: only the rows that are in sight exist, whatever their number.
import { el, text, bytes, count, duration } from "./dom.js";
import { stack, paint, names } from "./parts.js";

const height = 34, spare = 4;
const columns = [
  ["id", "Stream"], ["dataset", "Dataset"], ["tenant", "Tenant"], ["peer", "Client"],
  ["rows_per_s", "Rows/s", true], ["bytes_per_s", "Bytes/s", true], ["store", "Where its time goes"], ["limit", "Limited by"],
];

export function streams() {
  let all = [], shown = [], by = "bytes_per_s", down = true, needle = "";
  const pool = [];
  const rows = el("div.rows", { role: "rowgroup" });
  const cells = columns.map(([key, name, number]) => el("div", { role: "columnheader", class: number ? "n" : null },
    el("button", { type: "button", click: () => { down = by === key ? !down : number === true; by = key; order(); } }, name)));
  const grid = el("div", { role: "table", "aria-label": "Streams" },
    el("div", { role: "rowgroup" }, el("div.line.heads", { role: "row", "aria-rowindex": "1" }, cells)), rows);
  const list = el("div.list", { tabindex: "0", role: "region", "aria-label": "List of streams", scroll: () => draw() }, grid);
  const total = el("span.muted");
  const nothing = el("div.empty", el("strong", "No stream runs"), "Streams appear here as soon as a client calls DoGet, DoPut or DoExchange.");
  const find = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter streams by dataset, tenant, client or plan", input: () => { needle = find.value.toLowerCase(); order(); } });
  const node = el("section.card", { "aria-label": "Streams" }, el("header", el("h2", "Streams"), total, el("div.end", find)), nothing, list);

  function order() {
    shown = needle ? all.filter((s) => [s.id, s.kind, s.dataset, s.tenant, s.peer, s.plan, s.limit].join(" ").toLowerCase().includes(needle)) : all.slice();
    const side = down ? -1 : 1;
    shown.sort((a, b) => {
      const x = a[by] ?? "", y = b[by] ?? "";
      return (x < y ? -1 : x > y ? 1 : a.id - b.id) * side;
    });
    columns.forEach(([key], i) => {
      if (key === by) cells[i].setAttribute("aria-sort", down ? "descending" : "ascending");
      else cells[i].removeAttribute("aria-sort");
    });
    text(total, needle ? count(shown.length) + " of " + count(all.length) : count(all.length));
    nothing.hidden = all.length > 0;
    list.hidden = all.length === 0;
    rows.style.height = shown.length * height + "px";
    grid.setAttribute("aria-rowcount", String(shown.length + 1));
    draw();
  }

  function line() {
    const parts = columns.map((c) => el("div", { role: "cell", class: c[2] ? "n" : null }));
    const where = stack();
    parts[6].append(where);
    const row = el("div.line", { role: "row" }, parts);
    rows.append(row);
    return { row, parts, where };
  }

  function draw() {
    const from = Math.max(0, Math.floor(list.scrollTop / height) - spare);
    const to = Math.min(shown.length, Math.ceil((list.scrollTop + 460) / height) + spare);
    while (pool.length < to - from) pool.push(line());
    pool.forEach((l, i) => {
      const at = from + i;
      l.row.hidden = at >= to;
      if (at >= to) return;
      const s = shown[at];
      l.row.style.transform = "translateY(" + at * height + "px)";
      l.row.setAttribute("aria-rowindex", String(at + 2));
      text(l.parts[0], s.id + (s.kind === "DoGet" ? "" : " " + s.kind.slice(2)));
      text(l.parts[1], s.dataset || "–");
      text(l.parts[2], s.tenant || "–");
      text(l.parts[3], s.peer);
      text(l.parts[4], count(s.rows_per_s));
      text(l.parts[5], bytes(s.bytes_per_s));
      text(l.parts[7], names[s.limit] || "–");
      l.row.title = s.kind + ", plan " + (s.plan || "–") + ", for " + duration(s.seconds) + ", " + count(s.rows) + " rows";
      paint(l.where, s);
    });
  }
  order();
  return { node, update: (list) => { all = list; order(); } };
}
