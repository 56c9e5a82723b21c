// How the values of a column are distributed: classes, texts, or a histogram.
import { get } from "./api.js";
import { el, fill, count, percent, card, empty, bar, table } from "./dom.js";
import { failed } from "./datasets.js";

export function distribution(body, about, name) {
  const stop = new AbortController();
  body.className = "cols values";
  const columns = [];
  for (const c of about.columns) {
    if (c.kind === "metadata" && !/^(list|struct|map|large_list|fixed_size_list)/.test(c.type)) columns.push(c.name);
    if (c.kind === "blob") columns.push(c.name + ".size");
  }
  if (about.splits.length) columns.unshift("split");
  columns.sort((a, b) => (about.columns.find((c) => c.name === b)?.classes ? 1 : 0) - (about.columns.find((c) => c.name === a)?.classes ? 1 : 0));
  if (!columns.length) return void fill(body, card("Values", empty("No column can be summed up", "There are no columns of numbers, texts or truth values.")));
  const boxes = columns.slice(0, 24).map((c) => [c, card(c, el("p.muted", "Loading"))]);
  fill(body, boxes.map(([, box]) => box));
  (async () => { // one after the other: each looks at many rows
    for (const [column, box] of boxes) {
      try {
        draw(box, await get("summary", { dataset: name, snapshot: about.snapshot, column }, stop.signal));
      } catch (e) {
        if (e.name === "AbortError") return;
        failed(box.lastElementChild, e);
      }
    }
  })();
  return () => stop.abort();
}

const round = (v) => (Number.isInteger(v) ? count(v) : Number(v.toPrecision(4)).toString());

function draw(box, s) {
  const seen = s.looked < s.rows ? "estimated from " + count(s.looked) + " of " + count(s.rows) + " rows" : count(s.rows) + " rows";
  const head = el("header", el("h2", s.column), el("span.muted", seen + (s.nulls ? ", " + count(s.nulls) + " null" : "")));
  if (s.bins) {
    const most = Math.max(...s.bins.map((b) => b.count));
    const words = "Histogram from " + round(s.min) + " to " + round(s.max) + ", median " + round(s.p50);
    fill(box, head, el("div.hist", { role: "img", "aria-label": words }, s.bins.map((b) => {
      const i = el("i", { title: round(b.from) + " to " + round(b.to) + ": " + count(b.count) });
      i.style.height = b.count ? Math.max(1, (100 * b.count) / most) + "%" : "0";
      return i;
    })), el("div.axis", el("span", round(s.min)), el("span", "median " + round(s.p50) + ", mean " + round(s.mean)), el("span", round(s.max))));
  } else if (s.values && s.distinct > 20 && s.values[0].count === 1) {
    fill(box, head, empty(count(s.distinct) + (s.many ? " or more" : "") + " different values", "Each is there once: " + s.values[0].value + " and so on."));
  } else if (s.values) {
    const most = Math.max(...s.values.map((v) => v.count), 1), sum = s.looked - s.nulls;
    const more = s.distinct > s.values.length ? el("p.muted", "and " + count(s.distinct - s.values.length) + (s.many ? " or more" : "") + " others") : null;
    fill(box, head, el("div.counts", { tabindex: "0", role: "region", "aria-label": "Values of " + s.column }, table(["Value", "Rows", "#Count", "#Share"], s.values.map((v) => [
      v.value === "" ? el("span.muted", "empty") : v.value, bar(v.count / most, v.value), count(v.count), percent(v.count / Math.max(1, sum))]))), more);
  } else fill(box, head, empty("No values", s.rows ? "All are null." : "There are no rows."));
}
