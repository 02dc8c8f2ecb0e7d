// A map as lines between two columns of tokens: the queries on the left, the keys that they look at on the right.

import { shortName, svg } from "/static/attention.js";

const LINE = 18, TEXT = 13; // pixels
const MOST_LINES = 3000; // the strongest; more would only be a blur
const LEAST = 0.02; // of the largest weight
const NAME = 150, GAP = 220, EDGE = 6;

// Draws into an element, and calls `tell` with the query or key that is pointed at: {row} or {column}, or null.
export function drawLines(parent, map, { width, scheme, chosen, tell }) {
  const name = Math.min(NAME, (width - 80) / 2), gap = Math.max(80, Math.min(GAP * 2, width - 2 * name));
  const [left, right] = [name, name + gap], height = LINE * Math.max(map.rows, map.columns) + 2 * EDGE;
  const middle = (at) => EDGE + (at + 0.5) * LINE;
  const root = svg("svg", { width: right + name, height, viewBox: `0 0 ${right + name} ${height}`, role: "img" });
  root.append(svg("title", {}, "Lines from each query on the left to the keys that it looks at on the right"));
  root.append(svg("rect", { width: right + name, height, fill: `rgb(${scheme.paper})` }));
  const color = `rgb(${scheme.low})`, minus = `rgb(${scheme.high})`;
  const lines = strongest(map).map(({ row, column, part }) =>
    svg("line", {
      x1: left, y1: middle(row), x2: right, y2: middle(column), "stroke-width": 1 + 1.5 * Math.abs(part),
      stroke: part < 0 ? minus : color, "stroke-opacity": Math.abs(part).toFixed(3), "data-row": row, "data-column": column,
    }));
  root.append(...lines);
  const names = [
    ...map.rowNames.map((text, row) => label(text, { x: left - 6, y: middle(row), "text-anchor": "end", "data-row": row }, scheme)),
    ...map.columnNames.map((text, column) => label(text, { x: right + 6, y: middle(column), "data-column": column }, scheme)),
  ];
  root.append(...names);
  const emphasize = (of) => {
    const key = of && ("row" in of ? "row" : "column");
    const shown = (item) => !of || Number(item.dataset[key]) === of[key];
    for (const line of lines) line.style.display = shown(line) ? "" : "none";
    for (const one of names) one.style.fontWeight = of && one.dataset[key] !== undefined && shown(one) ? "700" : "";
  };
  root.addEventListener("pointermove", (event) => {
    const on = event.target.closest("[data-row],[data-column]");
    if (!on || on.tagName === "line") return;
    tell(on.dataset.row !== undefined ? { row: Number(on.dataset.row) } : { column: Number(on.dataset.column) });
  });
  root.addEventListener("pointerleave", () => tell(null));
  emphasize(chosen);
  parent.replaceChildren(root);
  return { root, emphasize };
}

function strongest(map) {
  const found = [];
  for (let row = 0; row < map.rows; row++) {
    for (let column = 0; column < map.columns; column++) {
      const part = map.values[row * map.columns + column] / map.largest;
      if (Math.abs(part) >= LEAST) found.push({ row, column, part });
    }
  }
  return found.sort((one, other) => Math.abs(other.part) - Math.abs(one.part)).slice(0, MOST_LINES).reverse();
}

function label(text, attributes, scheme) {
  const shown = shortName(text), most = Math.floor(NAME / (TEXT * 0.62));
  const cut = [...shown].length > most ? `${[...shown].slice(0, most - 1).join("")}…` : shown;
  return svg("text", {
    fill: scheme.ink, "font-size": TEXT, "font-family": "ui-monospace, Menlo, Consolas, monospace", "dominant-baseline": "central", ...attributes,
  }, cut);
}
