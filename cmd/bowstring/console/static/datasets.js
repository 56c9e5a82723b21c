// The datasets that the viewer may see.
import { get } from "./api.js";
import { origin, el, fill, count, date, card, empty, table } from "./dom.js";

export const link = (name, tab, rest) => "#/dataset/" + encodeURIComponent(name) + (tab ? "/" + tab : "") + (rest ? "?" + new URLSearchParams(rest) : "");

export function datasets(main) {
  const stop = new AbortController();
  const box = card("Datasets", el("p.muted", "Loading"));
  fill(main, el("h1", "Datasets"), box);
  get("datasets", {}, stop.signal).then(({ datasets: list, more }) => {
    const row = (d) => el("tr",
      el("td", el("a", { href: link(d.dataset) }, d.dataset)), el("td.n", count(d.rows)),
      el("td", d.splits.map((s) => el("span.tag", s.name + " " + count(s.rows)))), el("td.n", "@" + d.newest),
      el("td", d.tags.map((t) => el("span.tag", t.tag + " @" + t.snapshot))), el("td", date(d.created)), el("td.muted", origin(d.source)));
    fill(box, el("header", el("h2", count(list.length) + (list.length === 1 ? " dataset" : " datasets")), more ? el("span.muted", "the first ones") : null),
      list.length ? table(["Name", "#Rows", "Splits", "#Newest", "Tags", "Created", "Source"], list.map(row))
        : empty("There is no dataset for you", "bowstring import brings one in; the server's rules say which exist for whom."));
  }).catch((e) => failed(box, e));
  return () => stop.abort();
}

/** failed shows what went wrong, unless the view has been left. */
export function failed(box, e) {
  if (e.name !== "AbortError") fill(box, el("div.error", { role: "alert" }, e.message));
}
