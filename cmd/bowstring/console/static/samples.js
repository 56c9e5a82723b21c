// Samples by expression: a grid of what they look like, and one of them in full.
import { get, blobURL } from "./api.js";
import { el, fill, count, value, card, empty } from "./dom.js";
import { detail } from "./sample.js";

const size = 48;

/** tiles is what makes tiles of samples, and the columns that their rows need. */
export function tiles(about, name) {
  const media = about.columns.find((c) => c.kind === "blob" && c.media) || about.columns.find((c) => c.kind === "blob");
  const columns = about.columns.filter((c) => c.kind !== "blob").map((c) => c.name);
  if (!columns.includes("split")) columns.push("split");
  for (const c of about.columns) if (c.kind === "blob") columns.push(c.name + ".size");
  const label = about.columns.find((c) => c.classes) || about.columns.find((c) => c.kind === "metadata");
  const caption = (row) => {
    if (!label) return "#" + row.position;
    const v = row[label.name];
    return label.classes && label.classes[v] !== undefined ? label.classes[v] : value(v);
  };

  function tile(row) {
    const frame = el("div.frame");
    const has = media && row[media.name + ".size"] !== null;
    if (has && media.media === "audio") frame.append("♪ sound");
    else if (has) {
      const img = el("img", { alt: "", loading: "lazy", decoding: "async", src: blobURL({ dataset: name, snapshot: about.snapshot, position: row.position, column: media.name }) });
      img.addEventListener("error", () => fill(frame, el("span", "no picture")));
      frame.append(img);
    } else frame.append("no blob");
    return el("button.tile", { type: "button", "aria-label": "Sample " + row.position + ", " + caption(row), click: () => detail(about, name, row, caption(row)) },
      frame, el("div.cap", { title: caption(row) }, caption(row)));
  }
  return { tile, columns };
}

export function samples(body, about, name) {
  const { tile, columns } = tiles(about, name);
  let stop = new AbortController(), page = 0;
  const split = el("select", { id: "split", change: () => ask(0) }, el("option", { value: "" }, "all"), about.splits.map((s) => el("option", { value: s.name }, s.name)));
  const where = el("input", { id: "where", type: "text", spellcheck: "false", autocomplete: "off", placeholder: example(about), "aria-describedby": "problem" });
  const problem = el("div", { id: "problem", role: "alert" });
  const grid = el("div.grid"), total = el("span.muted", { role: "status" });
  const back = el("button", { type: "button", click: () => ask(page - 1) }, "Previous");
  const forth = el("button", { type: "button", click: () => ask(page + 1) }, "Next");
  const box = card("Samples", grid, el("div.pager", back, forth, total));
  const form = el("form.card.ask", { "aria-label": "Which samples", submit: (e) => { e.preventDefault(); ask(0); } },
    el("div", el("label", { for: "split" }, "Split"), split), el("div", el("label", { for: "where" }, "Where"), where), el("button.primary", { type: "submit" }, "Show"));
  body.className = "";
  body.style.display = "grid";
  body.style.gap = "16px";
  fill(body, form, problem, box);

  async function ask(to) {
    stop.abort();
    stop = new AbortController();
    try {
      const got = await get("samples", { dataset: name, snapshot: about.snapshot, split: split.value, where: where.value, page: to, size, column: columns }, stop.signal);
      page = to;
      fill(problem);
      where.removeAttribute("aria-invalid");
      fill(grid, got.rows.map(tile));
      grid.hidden = !got.rows.length;
      box.querySelector(".empty")?.remove();
      if (!got.rows.length) box.querySelector("header").after(empty("No sample matches", "Change the expression or the split."));
      total.textContent = got.total ? count(to * size + 1) + " to " + count(to * size + got.rows.length) + " of " + count(got.total) : "0 samples";
      back.disabled = to === 0;
      forth.disabled = (to + 1) * size >= got.total;
    } catch (e) {
      if (e.name === "AbortError") return;
      where.setAttribute("aria-invalid", e.body?.line ? "true" : "false");
      fill(problem, el("div.error", e.message, e.body?.line ? place(where.value.trim(), e.body.line, e.body.column) : null));
    }
  }
  ask(0);
  return () => stop.abort();
}

/** place shows an expression with the part marked that the server names. */
function place(expression, line, column) {
  const lines = expression.split("\n");
  const before = [...(lines[line - 1] || "")];
  const at = Math.min(Math.max(column - 1, 0), before.length);
  const rest = before.slice(at).join("");
  const word = /^([\p{L}\p{N}_.]+|.)/u.exec(rest)?.[0] || " ";
  return el("div.place", before.slice(0, at).join(""), el("mark", word), rest.slice(word.length));
}

function example(about) {
  const c = about.columns.find((x) => x.kind === "metadata" && /^u?int/.test(x.type));
  return c ? c.name + " < 10" : "position < 100";
}
