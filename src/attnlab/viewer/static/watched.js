// What was watched while a run trained: a row for each quantity, a small chart for each layer, a line for each head.

import { element, svg } from "/static/attention.js";

const WIDTH = 200, HEIGHT = 84, EDGE = { left: 40, right: 6, top: 6, bottom: 16 };
const short = (value) => (value !== 0 && (Math.abs(value) >= 1e4 || Math.abs(value) < 1e-2) ? value.toExponential(0) : String(Number(value.toPrecision(3))));

export function drawWatched({ quantities, note }) {
  return [
    ...quantities.map(({ title, layers }) => {
      const all = layers.flatMap((layer) => layer.curves.flat()).filter(([, value]) => value !== null);
      const ends = { steps: range(all.map(([step]) => step)), values: range(all.map(([, value]) => value)) };
      return element("section", {}, element("h4", { textContent: title }),
        element("div", { className: "charts" }, ...layers.map((layer) => chart(layer, title, ends))));
    }),
    ...(note ? [element("p", { className: "note", textContent: note })] : []),
  ];
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
