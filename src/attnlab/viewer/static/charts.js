// Charts as SVG, without a library: curves of runs by variant, and effects with their intervals.
// A chart is drawn anew whenever its data or its width change; nothing is animated.

const SVG = "http://www.w3.org/2000/svg";
const HUES = 9; // colors of base.css; beyond them lines are dashed
const START = 0.1; // part of the steps that may lie outside: before it curves fall too fast to share an axis
const RATIO_FOR_LOG = 20;
const NARROW = 640, CHARACTER = 6.6; // px: below it words take two lines; of one character
const GRID = 160; // places at which means over seeds are taken

export const hue = (index) => `v${index % HUES}${index < HUES ? "" : " dashed"}`;

export function element(name, attributes = {}, ...children) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-4)) return value.toExponential(2).replace("-", "−");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 8 }).replace("-", "−");
}

// The value of a curve at a step, between its points; null beyond its ends.
export function valueAt(points, step) {
  if (!points.length || step < points[0][0] || step > points[points.length - 1][0]) return null;
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= step) low = middle; else high = middle;
  }
  const [a, b] = [points[low], points[high]];
  return a[0] === b[0] ? b[1] : a[1] + ((b[1] - a[1]) * (step - a[0])) / (b[0] - a[0]);
}

// Mean, lowest and highest of several curves as far as all of them have come.
export function meanOf(curves) {
  const there = curves.filter((points) => points.length);
  if (!there.length) return [];
  if (there.length === 1) return there[0].map(([step, value]) => ({ step, mean: value, low: value, high: value }));
  const from = Math.max(...there.map((points) => points[0][0]));
  const to = Math.min(...there.map((points) => points[points.length - 1][0]));
  if (to < from) return [];
  const own = [...new Set(there.flatMap((points) => points.map(([step]) => step)))].filter((s) => s >= from && s <= to);
  const steps = own.length <= GRID ? own.sort((a, b) => a - b)
    : Array.from({ length: GRID + 1 }, (_, index) => from + ((to - from) * index) / GRID);
  return steps.map((step) => {
    const values = there.map((points) => valueAt(points, step));
    return { step, mean: values.reduce((a, b) => a + b) / values.length, low: Math.min(...values), high: Math.max(...values) };
  });
}

function ticks(low, high, count) {
  const power = 10 ** Math.floor(Math.log10((high - low) / count));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => (high - low) / size < count + 1.5);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, index) => (first + index) * step);
}

function logTicks(low, high) {
  const powers = Array.from({ length: 40 }, (_, index) => index - 20);
  const all = (factors) => powers.flatMap((power) => factors.map((factor) => factor * 10 ** power)).filter((v) => v >= low && v <= high);
  return all([1, 2, 5]).length <= 8 ? all([1, 2, 5]) : all([1]);
}

// A scale from values to pixels, logarithmic where values span more than RATIO_FOR_LOG.
function scale(values, from, to) {
  let low = Math.min(...values), high = Math.max(...values);
  const logarithmic = low > 0 && high / low > RATIO_FOR_LOG;
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const [f, g] = logarithmic ? [Math.log, Math.exp] : [(x) => x, (x) => x];
  const margin = 0.06 * (f(high) - f(low));
  const [a, b] = [f(low) - margin, f(high) + margin];
  const at = (value) => from + ((f(value) - a) / (b - a)) * (to - from);
  return { at, ticks: logarithmic ? logTicks(g(a), g(b)) : ticks(a, b, 5), logarithmic };
}

const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

// Curves of runs by variant. `draw({title, unit, groups})`, each group {name, index, runs: [points, ...]}.
export class CurveChart {
  constructor(place) {
    this.place = place;
    this.id = place.id;
    this.data = null;
    this.at = null; // the step that is read
    this.title = element("h3");
    this.svg = element("svg:svg", { tabindex: 0, role: "img" });
    this.told = element("output", { class: "told", "aria-live": "polite" });
    this.table = element("details", {}, element("summary", {}, "Values as a table"));
    place.replaceChildren(this.title, this.svg, this.told, this.table);
    this.table.addEventListener("toggle", () => this.fillTable());
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX - this.svg.getBoundingClientRect().left));
    this.svg.addEventListener("pointerleave", () => { if (document.activeElement !== this.svg) this.read(null); });
    this.svg.addEventListener("blur", () => this.read(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.data && this.redraw()).observe(place);
  }

  draw(data) {
    this.data = data;
    for (const group of data.groups) group.mean = meanOf(group.runs);
    this.redraw();
  }

  redraw() {
    const { title, unit, groups, empty } = this.data;
    this.title.textContent = title;
    this.width = Math.max(240, this.place.clientWidth - 2 * parseFloat(getComputedStyle(this.place).paddingLeft));
    this.height = Math.round(Math.min(420, Math.max(220, this.width * 0.55)));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("width", this.width);
    this.svg.setAttribute("height", this.height);
    const points = groups.flatMap((group) => group.runs.flat());
    this.steps = [...new Set(groups.flatMap((group) => group.mean.map((one) => one.step)))].sort((a, b) => a - b);
    this.svg.setAttribute("aria-label", `${title} in ${unit} by training step. ${this.summary() || empty}`);
    if (!points.length) {
      const words = element("svg:text", { x: this.width / 2, y: this.height / 2, class: "empty" }, empty);
      this.svg.replaceChildren(words);
      this.fillTable();
      return;
    }
    const first = points.reduce((least, point) => Math.min(least, point[0]), Infinity);
    const last = points.reduce((most, point) => Math.max(most, point[0]), -Infinity);
    const settled = points.filter(([step]) => step >= first + START * (last - first)).map(([, value]) => value);
    this.left = 58;
    this.y = scale(range(settled), this.height - 44, 10);
    this.x = (step) => this.left + ((step - first) / (last - first || 1)) * (this.width - this.left - 14);
    this.svg.replaceChildren(
      element("svg:title", {}, `${title} by training step`),
      this.clip(), this.axes(first, last, unit), element("svg:g", { "clip-path": `url(#${this.id}-clip)` }, ...groups.flatMap((group) => this.lines(group))),
      (this.cursor = element("svg:g", { class: "cursor" })),
    );
    this.read(this.at);
    this.fillTable();
  }

  clip() {
    const box = { x: this.left, y: 4, width: this.width - this.left - 8, height: this.height - 46 };
    return element("svg:clipPath", { id: `${this.id}-clip` }, element("svg:rect", box));
  }

  axes(first, last, unit) {
    const made = element("svg:g", { class: "axes", "aria-hidden": "true" }), bottom = this.height - 42;
    for (const value of this.y.ticks) {
      const y = this.y.at(value);
      made.append(element("svg:line", { x1: this.left, x2: this.width - 8, y1: y, y2: y, class: "grid" }));
      made.append(element("svg:text", { x: this.left - 7, y: y + 4, class: "end" }, number(value)));
    }
    for (const step of ticks(first, last || 1, Math.max(2, Math.floor(this.width / 120))).filter(Number.isInteger)) {
      const x = this.x(step), label = step.toLocaleString("en"), outside = x + (label.length * CHARACTER) / 2 > this.width;
      made.append(element("svg:text", { x: outside ? this.width : x, y: bottom + 16, class: outside ? "end" : "middle" }, label));
    }
    made.append(element("svg:line", { x1: this.left, x2: this.width - 8, y1: bottom, y2: bottom, class: "axis" }));
    made.append(element("svg:text", { x: (this.left + this.width) / 2, y: this.height - 6, class: "middle quiet" }, "training step"));
    const middle = (bottom + 4) / 2;
    const text = unit + (this.y.logarithmic ? " (log)" : "");
    made.append(element("svg:text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, class: "middle quiet" }, text));
    return made;
  }

  lines(group) {
    const at = (step, value) => [this.x(step), this.y.at(value)];
    const drawn = group.runs.filter((points) => points.length);
    const color = hue(group.index), found = [];
    if (drawn.length > 1) {
      const edge = [...group.mean.map((one) => at(one.step, one.high)), ...group.mean.map((one) => at(one.step, one.low)).reverse()];
      found.push(element("svg:path", { d: path(edge), class: `band ${color}` }));
      for (const points of drawn) found.push(element("svg:path", { d: path(points.map(([s, v]) => at(s, v))), class: `single ${color}` }));
    }
    found.push(element("svg:path", { d: path(group.mean.map((one) => at(one.step, one.mean))), class: `mean ${color}` }));
    for (const points of drawn) {
      if (points.length === 1) found.push(element("svg:circle", { cx: this.x(points[0][0]), cy: this.y.at(points[0][1]), r: 3, class: color }));
    }
    return found;
  }

  point(x) {
    if (!this.steps?.length || !this.x) return;
    const best = this.steps.reduce((near, step) => (Math.abs(this.x(step) - x) < Math.abs(this.x(near) - x) ? step : near));
    this.read(best);
  }

  key(event) {
    if (!this.steps?.length) return;
    const place = this.at === null ? -1 : this.steps.findIndex((step) => step >= this.at);
    const last = this.steps.length - 1, leap = event.shiftKey ? 10 : 1;
    const next = { ArrowRight: place + leap, ArrowLeft: place < 0 ? last : place - leap, Home: 0, End: last, Escape: null }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.read(next === null ? null : this.steps[Math.max(0, Math.min(last, next))]);
  }

  // Show and tell the values at a step; nothing for null.
  read(step) {
    this.at = step;
    this.cursor?.replaceChildren();
    if (step === null || !this.x) {
      this.told.textContent = this.summary();
      return;
    }
    const x = this.x(step);
    this.cursor.append(element("svg:line", { x1: x, x2: x, y1: 4, y2: this.height - 42 }));
    const words = [];
    for (const group of this.data.groups) {
      const mean = valueAt(group.mean.map((one) => [one.step, one.mean]), step);
      if (mean === null) continue;
      this.cursor.append(element("svg:circle", { cx: x, cy: this.y.at(mean), r: 3.5, class: hue(group.index) }));
      words.push(`${group.name} ${number(mean)}`);
    }
    this.told.textContent = `step ${Math.round(step).toLocaleString("en")}: ${words.join(" · ")}`;
  }

  summary() {
    const ends = this.data.groups.filter((group) => group.mean.length).map((group) => `${group.name} ${number(group.mean[group.mean.length - 1].mean)}`);
    return ends.length ? `last: ${ends.join(" · ")}` : "";
  }

  fillTable() {
    if (!this.table.open || !this.data) return;
    const rows = pick(this.steps ?? [], 10), groups = this.data.groups.filter((group) => group.mean.length);
    const head = element("tr", {}, element("th", { scope: "col" }, "step"), ...groups.map((group) => element("th", { scope: "col", class: "n" }, group.name)));
    const body = rows.map((step) => element("tr", {}, element("th", { scope: "row" }, Math.round(step).toLocaleString("en")),
      ...groups.map((group) => element("td", { class: "n" }, number(valueAt(group.mean.map((one) => [one.step, one.mean]), step))))));
    const table = element("table", {}, element("caption", { class: "hidden" }, this.data.title), element("thead", {}, head), element("tbody", {}, ...body));
    this.table.replaceChildren(this.table.firstElementChild, element("div", { class: "scroll" }, table));
  }
}

const range = (values) => [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
const pick = (all, count) => all.length <= count ? all : Array.from({ length: count }, (_, index) => all[Math.round((index * (all.length - 1)) / (count - 1))]);

const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

// Differences with their intervals, one row each; `smallest` is half the width of the band that does not matter.
export function drawEffects(place, { effects, smallest, unit, better }) {
  const width = Math.max(260, place.clientWidth - 2 * parseFloat(getComputedStyle(place).paddingLeft));
  const narrow = width < NARROW, row = narrow ? 62 : 46, height = effects.length * row + 50, side = 14;
  const values = effects.flatMap((one) => [one.difference, one.low ?? one.difference, one.high ?? one.difference]);
  const [low, high] = range([...values, 0, -smallest, smallest]), margin = 0.05 * (high - low || 1);
  const x = (value) => side + ((value - low + margin) / (high - low + 2 * margin)) * (width - 2 * side);
  const svg = element("svg:svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  svg.setAttribute("aria-label", effects.map((one) => `${one.name}: ${one.verdict}, ${one.told}`).join("; "));
  const bottom = height - 44;
  if (smallest) svg.append(element("svg:rect", { x: x(-smallest), width: x(smallest) - x(-smallest), y: 0, height: bottom, class: "small" }));
  svg.append(element("svg:line", { x1: x(0), x2: x(0), y1: 0, y2: bottom, class: "axis" }));
  for (const value of ticks(low, high || 1, Math.max(2, Math.floor(width / 110)))) {
    svg.append(element("svg:text", { x: x(value), y: bottom + 16, class: "middle" }, number(value)));
  }
  svg.append(element("svg:text", { x: width / 2, y: height - 6, class: "middle quiet" }, `difference in ${unit}, ${better} is better`));
  effects.forEach((one, index) => {
    const y = index * row + row - 12, words = `${one.verdict}, ${one.told}`, most = Math.floor((width - 2 * side) / CHARACTER);
    const lines = narrow ? [cut(one.name, most), cut(words, most)] : [cut(`${one.name}: ${words}`, most)];
    lines.reverse().forEach((text, above) => svg.append(element("svg:text", { x: side, y: y - 14 - 17 * above, class: "name" }, text)));
    if (one.low !== null && one.high !== null) svg.append(element("svg:line", { x1: x(one.low), x2: x(one.high), y1: y, y2: y, class: `interval ${one.verdict}` }));
    svg.append(element("svg:circle", { cx: x(one.difference), cy: y, r: 5, class: `dot ${one.verdict}` }));
  });
  place.replaceChildren(svg);
}
