// The chart of throughput over the last minutes, drawn by uPlot.
import { el, bytes } from "./dom.js";

const longest = 600;
const steps = Array.from({ length: 50 }, (_, i) => 2 ** i);
const lines = [["bytes_per_s", "all"], ["store_bytes_per_s", "store"], ["spill_bytes_per_s", "spill"]];

export function chart() {
  const box = el("div.chart", { role: "img", "aria-label": "Throughput over the last minutes" });
  const node = el("section.card", { "aria-label": "Throughput" }, el("header", el("h2", "Throughput"),
    el("div.end.keys", el("span.key.is-all", "Sent to clients"), el("span.key.is-store", "Read from store"), el("span.key.is-spill", "Read from spill"))), box);
  const data = [[], [], [], []];
  let plot = null;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  function make() {
    if (plot) plot.destroy();
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const now = Date.now() / 1000;
    plot = new window.uPlot({
      width: Math.max(200, box.clientWidth), height: 210, legend: { show: false }, cursor: { show: false }, padding: [8, 8, 0, 0],
      scales: { x: { time: true, range: (u, min, max) => [Math.min(min ?? now, (max ?? now) - 120), max ?? now] }, y: { range: (u, min, max) => [0, Math.max(max || 0, 1024) * 1.1] } },
      axes: [{ ...axis, size: 28, space: 90, values: [[3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] }, { ...axis, size: 74, incrs: steps, values: (u, marks) => marks.map((v) => (v === 0 ? "0" : bytes(v) + "/s")) }],
      series: [{}, ...lines.map(([, name], i) => ({ stroke: colour(name === "all" ? "accent" : name), width: i ? 1.5 : 2, points: { show: false }, spanGaps: false }))],
    }, data, box);
  }
  const watch = new ResizeObserver(() => { if (plot && box.clientWidth) plot.setSize({ width: box.clientWidth, height: 210 }); });

  function add(at, view) {
    data[0].push(at / 1000);
    lines.forEach(([key], i) => data[i + 1].push(view[key]));
    if (data[0].length > longest) data.forEach((d) => d.shift());
  }
  const seen = () => data[0].length ? data[0][data[0].length - 1] * 1000 : 0;
  return {
    node,
    begin() { make(); watch.observe(box); document.addEventListener("theme", make); },
    history(list) { data.forEach((d) => { d.length = 0; }); list.forEach((p) => add(p.at, p)); if (plot) plot.setData(data); },
    update(view) { const at = Date.parse(view.at); if (at > seen()) { add(at, view); if (plot) plot.setData(data); } },
    end() { watch.disconnect(); document.removeEventListener("theme", make); if (plot) plot.destroy(); plot = null; },
  };
}
