// Attention maps with the names of both axes, drawn and as files. Nothing here knows a page: all functions take what they
// draw on.

import { drawPixels } from "/static/attention_pixels.js";

const LARGEST_CELL = 26, LARGEST_MAP = 760, SMALLEST_NAMED = 10; // pixels of a cell; below that its name would not be readable
const MOST_NAMED = 128; // columns of a map that may be wider than its place
const NAME = 96; // pixels of a name at most
const FONT = "ui-monospace, Menlo, Consolas, 'Liberation Mono', monospace";

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function largestOf(values) {
  let largest = 0;
  for (const value of values) if (Math.abs(value) > largest) largest = Math.abs(value);
  return largest || 1;
}

// How a token is written where there is little room.
export function shortName(text) {
  const shown = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return shown.trim() || "␣".repeat(Math.max(1, shown.length));
}

// Where a map lies in a width: pixels before the first cell, size of a cell, and whether cells have names. Where what is
// around it scrolls, a map that is not large becomes wider than that rather than lose its names.
export function layout(map, width, scrolls = false) {
  const cellWith = (room) => Math.min(LARGEST_CELL, (Math.min(width, LARGEST_MAP) - room) / map.columns);
  const longest = Math.max(1, ...[...map.rowNames, ...map.columnNames].map((name) => [...shortName(name)].length));
  const room = Math.min(NAME, 10 + 7 * longest);
  const fits = cellWith(room) >= SMALLEST_NAMED, named = fits || (scrolls && map.columns <= MOST_NAMED);
  const left = named ? room : 0, cell = named && !fits ? SMALLEST_NAMED : cellWith(left);
  return { named, left, top: left, cell, width: left + cell * map.columns, height: left + cell * map.rows };
}

// The cell below a point, or null.
export function cellAt(map, place, x, y) {
  const column = Math.floor((x - place.left) / place.cell), row = Math.floor((y - place.top) / place.cell);
  return row < 0 || column < 0 || row >= map.rows || column >= map.columns ? null : { row, column };
}

// The pixels of a map, made once: a frame that follows the pointer draws them again and again.
function pixelsOf(map, scheme) {
  if (map.pixels?.scheme !== scheme.ink) {
    map.pixels = { scheme: scheme.ink, canvas: document.createElement("canvas") };
    drawPixels(map.pixels.canvas, map, scheme);
  }
  return map.pixels.canvas;
}

// A map with the names of its rows and columns, and a frame around the cell that is read.
export function drawMap(canvas, map, { width, scheme, chosen = null, scrolls = false, density = globalThis.devicePixelRatio || 1 }) {
  const place = layout(map, width, scrolls);
  canvas.width = Math.ceil(place.width * density);
  canvas.height = Math.ceil(place.height * density);
  canvas.style.width = `${place.width}px`;
  canvas.style.height = `${place.height}px`;
  const context = canvas.getContext("2d");
  context.scale(density, density);
  context.fillStyle = `rgb(${scheme.paper})`;
  context.fillRect(0, 0, place.width, place.height);
  context.imageSmoothingEnabled = map.columns * density > place.width * density; // only where cells are less than a pixel
  context.drawImage(pixelsOf(map, scheme), place.left, place.top, place.cell * map.columns, place.cell * map.rows);
  if (place.named) drawNames(context, map, place, scheme, chosen);
  if (chosen) {
    context.strokeStyle = `rgb(${scheme.high})`;
    context.lineWidth = 2;
    const size = Math.max(4, place.cell);
    context.strokeRect(place.left + chosen.column * place.cell, place.top + chosen.row * place.cell, size, size);
  }
  return place;
}

function drawNames(context, map, place, scheme, chosen) {
  context.font = `${Math.min(12, place.cell - 1)}px ${FONT}`;
  context.textBaseline = "middle";
  map.rowNames.forEach((name, row) => {
    context.textAlign = "right";
    context.fillStyle = chosen?.row === row ? scheme.ink : scheme.muted;
    context.fillText(fitted(name), place.left - 5, place.top + (row + 0.5) * place.cell);
  });
  const upright = areUpright(map);
  map.columnNames.forEach((name, column) => {
    context.save();
    context.translate(place.left + (column + 0.5) * place.cell, place.top - (upright ? 8 : 5));
    if (!upright) context.rotate(-Math.PI / 2);
    context.textAlign = upright ? "center" : "left";
    context.fillStyle = chosen?.column === column ? scheme.ink : scheme.muted;
    context.fillText(fitted(name), 0, 0);
    context.restore();
  });
}

// Single characters need not be turned to fit their columns.
const areUpright = (map) => map.columnNames.every((name) => [...shortName(name)].length === 1);

function fitted(name) {
  const characters = [...shortName(name)], most = Math.floor((NAME - 10) / 7);
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : characters.join("");
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// The same map as one SVG: cells as a picture of one pixel each, names as text.
export function mapAsSvg(map, scheme) {
  const place = layout(map, 2000);
  const { left, top, cell } = place;
  const root = svg("svg", { xmlns: SVG, viewBox: `0 0 ${place.width} ${place.height}`, width: place.width, height: place.height });
  root.append(
    svg("rect", { width: place.width, height: place.height, fill: `rgb(${scheme.paper})` }),
    svg("image", { href: pixelsOf(map, scheme).toDataURL(), x: left, y: top, width: cell * map.columns, height: cell * map.rows, preserveAspectRatio: "none", "image-rendering": "pixelated" }),
  );
  if (!place.named) return root;
  const text = { fill: scheme.muted, "font-size": Math.min(12, cell - 1), "font-family": FONT, "dominant-baseline": "central" };
  map.rowNames.forEach((name, row) =>
    root.append(svg("text", { ...text, x: left - 5, y: top + (row + 0.5) * cell, "text-anchor": "end" }, fitted(name))));
  const upright = areUpright(map);
  map.columnNames.forEach((name, column) => {
    const x = left + (column + 0.5) * cell, y = top - (upright ? 8 : 5);
    const turned = upright ? { "text-anchor": "middle" } : { transform: `rotate(-90 ${x} ${y})` };
    root.append(svg("text", { ...text, x, y, ...turned }, fitted(name)));
  });
  return root;
}

const quoted = (text) => `"${text.replaceAll('"', '""')}"`;

// A row of keys, then a row per query, each begun with its token.
export function mapAsCsv(map) {
  const rows = map.rowNames.map((name, row) => [
    quoted(name), ...map.values.subarray(row * map.columns, (row + 1) * map.columns),
  ]);
  return [["", ...map.columnNames.map(quoted)], ...rows].map((row) => row.join(",")).join("\r\n") + "\r\n";
}
