// What is watched while a run trains: a row for each quantity, a small chart for each layer, a line for each head.

import { element, svg } from "/static/attention.js";
import { follow } from "/static/stream.js";

const MOST = 240; // looks; of more all are asked for anew, thinned
const WIDTH = 220, HEIGHT = 84, EDGE = { left: 56, right: 6, top: 6, bottom: 16 };
const short = (value) => (value !== 0 && (Math.abs(value) >= 1e4 || Math.abs(value) < 1e-2) ? value.toExponential(0) : String(Number(value.toPrecision(3))));

// Follow the looks of a run: those of a moment are drawn once, into a box that opens where there are some.
export function followWatched(address, box, told) {
  let looks = [], titles = {}, note = "", waiting = false;
  const stream = follow(address, (change) => {
    if (change.anew) ({ looks, titles } = change);
    else looks.push(...(change.looks ?? []));
    note = change.note ?? note;
    if (change.state) told(change);
    if (["finished", "failed"].includes(change.state)) stream.end();
    else if (looks.length > MOST) stream.anew();
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  });
  function draw() {
    waiting = false;
    box.hidden = !looks.length;
    if (box.open) box.lastElementChild.replaceChildren(...drawn(looks, titles, note));
  }
  box.addEventListener("toggle", draw);
}

function drawn(looks, titles, note) {
  return [
    ...Object.entries(titles).map(([quantity, title]) => {
      const layers = layersOf(looks, quantity);
      const all = layers.flatMap((layer) => layer.curves.flat()).filter(([, value]) => value !== null);
      if (!all.length) return "";
      const ends = { steps: range(all.map(([step]) => step)), values: range(all.map(([, value]) => value)) };
      return element("section", {}, element("h4", { textContent: title }),
        element("div", { className: "charts" }, ...layers.map((layer) => chart(layer, title, ends))));
    }),
    ...(note ? [element("p", { className: "note", textContent: note })] : []),
  ];
}

// By layer a curve for each head, or one for the layer.
function layersOf(looks, quantity) {
  const found = new Map();
  for (const [step, seen] of looks) {
    for (const [name, values] of Object.entries(seen[quantity] ?? {})) {
      if (!found.has(name)) found.set(name, []);
      values.forEach((value, head) => (found.get(name)[head] ??= []).push([step, value]));
    }
  }
  return [...found].map(([name, curves]) => ({ name, curves }));
}

const range = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

function chart({ name, curves }, title, { steps, values }) {
  const x = (step) => EDGE.left + ((step - steps[0]) / (steps[1] - steps[0] || 1)) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value) => EDGE.top + ((values[1] - value) / (values[1] - values[0] || 1)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const root = svg("svg", { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const last = curves.map((curve) => curve.at(-1)?.[1]).filter((value) => value !== null && value !== undefined);
  root.setAttribute("aria-label", `${title} of ${name}, at the end ${last.map(short).join(", ")}`);
  for (const value of values) {
    root.append(
      svg("line", { class: "rule", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: EDGE.left - 5, y: y(value), "text-anchor": "end", "dominant-baseline": "central" }, short(value)));
  }
  new Set(steps).forEach((step) => root.append(svg("text", { class: "tick", x: x(step), y: HEIGHT - 3, "text-anchor": step > steps[0] ? "end" : "start" }, String(step))));
  for (const curve of curves) root.append(svg("path", { class: "curve", d: path(curve, x, y) }));
  return element("figure", {}, element("figcaption", { textContent: name }), root);
}

// A gap where a value was not finite; a look by itself is a dot.
function path(curve, x, y) {
  return curve.map(([step, value], at) => (value === null ? "" : `${at && curve[at - 1][1] !== null ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}h0`)).join("");
}
