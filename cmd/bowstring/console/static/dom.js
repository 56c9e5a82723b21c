// Elements are made by el: what comes from data becomes text, never markup.

/** el makes an element: el("p.muted", {title: "…"}, "text", child). */
export function el(what, ...rest) {
  const [name, ...classes] = what.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  for (const part of rest.flat(Infinity)) {
    if (part === null || part === undefined || part === false) continue;
    if (part instanceof Node) node.append(part);
    else if (typeof part === "object") set(node, part);
    else node.append(String(part));
  }
  return node;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
}

/** text sets a node's text, if it is another. */
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter(Boolean));
  return node;
}

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** size returns [number, unit] of bytes. */
export function size(bytes) {
  let n = bytes, i = 0;
  while (Math.abs(n) >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return [i === 0 ? String(Math.round(n)) : n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0), units[i]];
}

export const bytes = (n) => size(n).join(" ");
const grouped = new Intl.NumberFormat("en");
/** dollars is an amount to the cent from a dollar on, else of two digits. */
export const dollars = (d) => "$" + (d === 0 ? "0" : d >= 1 ? d.toFixed(2) : d.toPrecision(2));
export const count = (n) => grouped.format(Math.round(n));
export const percent = (share) => (share === null || share === undefined ? "–" : (100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0) + " %");
export const millis = (us) => (us === 0 ? "–" : us < 1000 ? us + " µs" : (us / 1000).toFixed(us < 10000 ? 1 : 0) + " ms");

/** duration is a length of time in seconds. */
export function duration(s) {
  if (s === null || s === undefined || !isFinite(s)) return "–";
  if (s < 1) return "<1 s";
  if (s < 90) return Math.round(s) + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.floor(s / 3600) + " h " + Math.round((s % 3600) / 60) + " min";
  return Math.round(s / 86400) + " days";
}

export const date = (iso) => new Date(iso).toLocaleString("sv").slice(0, 16);
export const value = (v) => (v === null || v === undefined ? "–" : typeof v === "object" ? JSON.stringify(v) : String(v));

export function card(title, ...rest) {
  return el("section.card", { "aria-label": title }, el("header", el("h2", title)), ...rest);
}

export function empty(title, hint) {
  return el("div.empty", el("strong", title), hint);
}

/** table makes one of rows; a head that begins with "#" is of numbers. */
export function table(heads, rows) {
  const number = heads.map((h) => h.startsWith("#"));
  return el("div.scroll", el("table",
    el("thead", el("tr", heads.map((h, i) => el("th", { scope: "col", class: number[i] ? "n" : null }, h.replace("#", ""))))),
    el("tbody", rows.map((r) => (r instanceof Node ? r : el("tr", r.map((c, i) => el("td", { class: number[i] ? "n" : null }, c))))))));
}

export function bar(share, label) {
  const inner = el("span.fill");
  inner.style.width = 100 * Math.min(1, Math.max(0, share || 0)) + "%";
  return el("div.bar", { role: "img", "aria-label": label + " " + percent(share) }, inner);
}

/** origin names a source, "FORMAT PATH", without the folders of the machine that imported it; a URL of a bucket is kept. */
export function origin(source) {
  const at = (source || "").indexOf(" ");
  const path = source ? source.slice(at + 1) : "";
  if (at < 0 || (path.includes("://") && !path.startsWith("file://"))) return source || "–";
  return source.slice(0, at + 1) + path.replace(/\/+$/, "").split("/").pop();
}
