// The page of a study: what the stream of events tells, put into words, charts and a table of runs.

import { CurveChart, drawEffects, element, hue } from "/static/charts.js";
import { follow } from "/static/stream.js";

const REOPEN = 6000; // points of one curve after which everything is asked for anew, thinned
const place = document.getElementById("study");
const at = (id) => document.getElementById(id);
const charts = { metric: new CurveChart(at("metric")), loss: new CurveChart(at("loss")) };
const runs = new Map(); // by folder
const hidden = new Set(); // variants that a person put away
let study = null, phase = null, waiting = false;

function take(change) {
  if (change.study) words(change.study);
  for (const [folder, told] of Object.entries(change.runs ?? {})) merge(folder, told);
  if (!waiting) {
    waiting = true; // many changes in one frame are drawn once
    requestAnimationFrame(() => { waiting = false; draw(); });
  }
}

function words(told) {
  study = told;
  at("report").hidden = !told.has_report;
  for (const [id, html] of Object.entries(told.parts)) {
    if (at(id).innerHTML !== html) at(id).innerHTML = html; // the server's own templates, which escape names
  }
}

function merge(folder, told) {
  const points = told.anew ? {} : runs.get(folder)?.points ?? {};
  for (const [kind, more] of Object.entries(told.points)) points[kind] = [...(points[kind] ?? []), ...more];
  runs.set(folder, { ...told, points });
  if (!told.anew && Object.values(points).some((one) => one.length > REOPEN)) stream.anew();
}

function draw() {
  if (!study) return;
  const all = [...runs.values()];
  const tuned = all.some((run) => run.tuning);
  const judged = all.some((run) => !run.tuning && run.step !== null);
  const shown = phase ?? (tuned && !judged ? "tuning" : "judged");
  drawPhases(tuned, shown);
  const drawn = all.filter((run) => run.tuning === (shown === "tuning"));
  drawLegend(drawn);
  const { metric } = study;
  const grouped = shown === "tuning" ? oneByOne(drawn) : byVariant(drawn);
  curves("metric", metric ? metric.title || metric.name.replaceAll("_", " ") : "metric", metric?.unit ?? "", grouped);
  curves("loss", "training loss", "loss, mean since the last record", grouped);
  effects();
  table();
}

const byVariant = (drawn) => study.variants.map((name, index) => ({ name, variant: name, index, of: drawn.filter((run) => run.variant === name) }));

// Runs with different settings have no mean.
const oneByOne = (drawn) => drawn.map((run) => ({
  name: `${run.variant}, ${run.title}`, variant: run.variant, index: study.variants.indexOf(run.variant), of: [run],
}));

function curves(kind, title, unit, grouped) {
  const groups = grouped.filter((group) => !hidden.has(group.variant))
    .map(({ name, index, of }) => ({ name, index, runs: of.map((run) => run.points[kind] ?? []) }));
  charts[kind].draw({ title, unit, groups, empty: "nothing is recorded yet" });
}

function effects() {
  at("effects-section").hidden = !study.effects.length;
  if (study.effects.length) {
    const { effects: found, smallest_effect: smallest, unit, better } = study;
    drawEffects(at("effects"), { effects: found, smallest, unit, better });
  }
}

function button(text, pressed, press, ...before) {
  const made = element("button", { type: "button", "aria-pressed": String(pressed) }, ...before, text);
  made.addEventListener("click", press);
  return made;
}

function keepFocus(container, ...children) {
  const index = [...container.children].indexOf(document.activeElement);
  container.replaceChildren(...children);
  if (index >= 0) container.children[index]?.focus();
}

function drawPhases(tuned, shown) {
  at("phases").hidden = !tuned;
  const names = { judged: "judged runs", tuning: "runs that choose settings" };
  keepFocus(at("phases"), ...Object.entries(names).map(([key, text]) => button(text, key === shown, () => { phase = key; draw(); })));
}

function drawLegend(drawn) {
  const names = study.variants.filter((name) => drawn.some((run) => run.variant === name));
  keepFocus(at("legend"), ...names.map((name) => {
    const line = element("svg:svg", { width: 22, height: 10, "aria-hidden": "true" },
      element("svg:path", { d: "M0,5L22,5", class: `mean ${hue(study.variants.indexOf(name))}` }));
    return button(name, !hidden.has(name), () => { if (!hidden.delete(name)) hidden.add(name); draw(); }, line);
  }));
}

const rate = (value) => (value === null ? "" : `${Math.round(value).toLocaleString("en")} tokens/s`);

function table() {
  const ordered = [...runs].sort(([, a], [, b]) => (b.state === "running") - (a.state === "running"));
  const rows = ordered.map(([folder, run]) => {
    const begun = run.state !== "waiting";
    const address = place.dataset.runs + folder.split("/").map(encodeURIComponent).join("/");
    const name = begun ? element("a", { href: address }, run.title) : run.title;
    const bar = element("progress", { max: 1, value: run.progress, "aria-label": `${run.variant}, ${run.title}` });
    const damaged = run.damaged ? ` · ${run.damaged} damaged record(s) left out` : "";
    const step = run.step === null ? "" : `step ${run.step.toLocaleString("en")}`;
    return element("tr", {}, element("th", { scope: "row" }, run.variant), element("td", {}, name),
      element("td", {}, element("span", { class: `state ${run.state}` }, run.state)), element("td", { class: "bar" }, bar),
      element("td", { class: "n" }, step), element("td", { class: "n" }, run.state === "running" ? rate(run.rate) : ""),
      element("td", { class: "n" }, (run.left ? `${run.left} left` : run.lost) + damaged));
  });
  const heads = ["variant", "run", "state", "progress", "step", "rate", "time left"];
  const head = element("tr", {}, ...heads.map((text, index) => element("th", { scope: "col", class: index > 3 ? "n" : null }, text)));
  const focused = document.activeElement?.getAttribute?.("href");
  at("runs").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  if (focused) [...at("runs").querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

new ResizeObserver(() => study && effects()).observe(at("effects-section"));
const stream = follow(place.dataset.events, take, (lost) => place.classList.toggle("lost", lost));
