// Where time goes: the parts of a stacked bar, in their order.
import { el, percent } from "./dom.js";

export const parts = ["store", "spill", "nodes", "window", "encode", "operators", "network", "consumer"];
export const names = { store: "Store", spill: "Spill", nodes: "Other nodes", window: "Full buffer", encode: "Encode", operators: "Operators", network: "Network", consumer: "Consumer" };

export function keys() {
  return el("div.keys", parts.map((p) => el("span.key.is-" + p, names[p])));
}

export function stack(kind = "stack") {
  const node = el("div." + kind, { role: "img" }, parts.map((p) => el("i.is-" + p)));
  return node;
}

/** paint shows shares of time in a stack. */
export function paint(node, shares) {
  let words = "";
  parts.forEach((p, i) => {
    const share = Math.max(0, shares[p] || 0);
    node.children[i].style.width = (100 * share).toFixed(1) + "%";
    if (share >= 0.005) words += (words ? ", " : "") + names[p] + " " + percent(share);
  });
  node.setAttribute("aria-label", words || "no time measured yet");
  node.title = words;
}
