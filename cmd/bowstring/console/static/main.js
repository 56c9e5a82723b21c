import { session, signIn, signOut, signedOut } from "./api.js";
import { el, fill } from "./dom.js";
import { live } from "./live.js";
import { datasets } from "./datasets.js";
import { dataset } from "./dataset.js";
import { jobs, job } from "./job.js";
import { cluster } from "./cluster.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const state = document.getElementById("state");
let leave = () => {}; // ends the view that is shown

export function say(is, words) {
  state.dataset.is = is;
  if (state.textContent !== words) state.textContent = words;
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  document.dispatchEvent(new Event("theme"));
}

function begin() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("bowstring-theme"); } catch { /* the browser keeps nothing */ }
  theme(chosen || (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => { if (!chosen) theme(dark.matches ? "dark" : "light"); });
  document.getElementById("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("bowstring-theme", chosen); } catch { /* likewise */ }
    theme(chosen);
  });
  document.getElementById("out").addEventListener("click", async () => { await signOut().catch(() => {}); start(); });
  document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); main.focus(); });
  addEventListener("hashchange", () => route(true));
  signedOut(() => start());
  start();
}

/** start asks the server for the viewer, and shows the view or the sign-in. */
export async function start() {
  let me;
  try {
    me = await session();
  } catch (e) {
    if (e.status === 401) return signInPage(e.body.mode);
    away();
    say("lost", "");
    return fill(main, el("div.error", { role: "alert" }, e.message), el("div", el("button", { type: "button", click: start }, "Try again")));
  }
  nav.hidden = false;
  document.getElementById("out").hidden = me.mode === "open";
  document.getElementById("who").textContent = me.principal || (me.mode === "token" ? "operator" : "");
  route(false);
}

/** away ends the view that is shown, with what it has open above itself. */
function away() {
  leave();
  leave = () => {};
  for (const d of document.querySelectorAll("dialog")) d.close();
}

const parents = { dataset: "datasets", job: "jobs" };
const titles = { datasets: "Datasets – ", jobs: "Jobs – ", cluster: "Cluster – " };

function route(moved) {
  if (nav.hidden) return;
  away();
  const [, view = "live", ...rest] = location.hash.split("?")[0].split("/").map(decode);
  for (const a of nav.children) {
    if (a.getAttribute("href").slice(2) === (parents[view] || view)) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  const views = { live, datasets, dataset, jobs, job, cluster };
  const show = Object.hasOwn(views, view) ? views[view] : live;
  document.title = (rest[0] ? rest[0] + " – " : titles[view] || "") + "Bowstring";
  if (show !== live) say("", "");
  leave = show(main, rest, new URLSearchParams(location.hash.split("?")[1] || "")) || (() => {});
  if (moved) main.focus();
}

function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

const signIns = {
  caller: ["Sign in", "Your token is the one that your Flight clients use. You see what they may see."],
  token: ["Sign in", "The token is the one of the admin listener (--admin-token-file)."],
  open: ["Not now", "Too many look at this server. Try again in a moment."],
};

function signInPage(mode) {
  if (document.getElementById("token")?.form.dataset.mode === mode) return; // it is open, and a token may be in it
  away();
  say("", "");
  nav.hidden = true;
  document.getElementById("out").hidden = true;
  document.getElementById("who").textContent = "";
  document.title = "Sign in – Bowstring";
  const [title, hint] = signIns[mode] || signIns.caller;
  const field = el("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false", "aria-describedby": "hint" });
  const wrong = el("div.error", { role: "alert", hidden: true });
  const form = el("form", {
    "data-mode": mode,
    submit: async (e) => {
      e.preventDefault();
      try {
        await signIn(field.value);
        field.value = "";
        start();
      } catch (problem) {
        wrong.hidden = false;
        wrong.textContent = problem.message;
        field.select();
      }
    },
  }, el("div", el("h1", title), el("p.muted", { id: "hint" }, hint)), el("label", { for: "token" }, "Token"), field, wrong, el("button.primary", { type: "submit" }, "Sign in"));
  fill(main, el("section.card.signin", form));
  field.focus();
}

begin();
