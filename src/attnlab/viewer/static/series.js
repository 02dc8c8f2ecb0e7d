// A sequence of numbers that is drawn by hand, and what a model makes of it. Nothing here knows a page.

import { svg } from "/static/attention.js";

const HEIGHT = 240, EDGE = { left: 44, right: 10, top: 10, bottom: 26 };
const USUAL = [-1, 3.5]; // of normalized heights: the axis stands still while one draws within
const STEP = 0.05; // of the whole range, a key's

// Draws into an element; `changed` is told the numbers after each stroke. Returns `update`, which shows other numbers.
export function seriesChart(parent, { changed, told }) {
  const root = svg("svg", { class: "series", role: "application", tabindex: 0 });
  root.setAttribute("aria-label", "A sequence to draw: drag to draw it; left and right choose a position, up and down move it");
  parent.replaceChildren(root);
  let shown = null, place = null, at = null, last = null;

  const x = (position) => EDGE.left + ((position + 0.5) / shown.input.length) * (place.width - EDGE.left - EDGE.right);
  const y = (value) => EDGE.top + ((place.high - value) / (place.high - place.low)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const path = (values) => values.map((value, position) => `${position ? "L" : "M"}${x(position).toFixed(1)} ${y(value).toFixed(1)}`).join("");

  function draw() {
    if (!shown) return;
    const all = [shown.input, shown.wanted, shown.prediction, shown.before].flat();
    place = { width: Math.max(240, parent.clientWidth), low: Math.min(USUAL[0], ...all), high: Math.max(USUAL[1], ...all) };
    for (const [name, value] of Object.entries({ width: place.width, height: HEIGHT, viewBox: `0 0 ${place.width} ${HEIGHT}` })) root.setAttribute(name, value);
    const steps = Array.from({ length: 5 }, (_, step) => Math.ceil(place.low) + step).filter((value) => value <= place.high);
    const axis = steps.flatMap((value) => [
      svg("line", { class: "rule", x1: EDGE.left, x2: place.width - EDGE.right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: EDGE.left - 8, y: y(value), "text-anchor": "end", "dominant-baseline": "central" }, String(value)),
    ]);
    const ends = [0, shown.input.length - 1].map((position) =>
      svg("text", { class: "tick", x: x(position), y: HEIGHT - 8, "text-anchor": "middle" }, String(position)));
    const lines = ["input", "wanted", "before", "prediction"].filter((name) => shown[name].length)
      .map((name) => svg("path", { class: `curve ${name}`, d: path(shown[name]) }));
    const mark = at === null ? [] : [svg("circle", { class: "mark", cx: x(at), cy: y(shown.input[at]), r: 4 })];
    root.replaceChildren(svg("title", {}, "Input, what is right, and what the model predicts"), ...axis, ...ends, ...lines, ...mark);
  }

  function under(event) {
    const frame = root.getBoundingClientRect(), span = frame.width - EDGE.left - EDGE.right;
    const position = Math.floor(((event.clientX - frame.left - EDGE.left) / span) * shown.input.length);
    const part = (event.clientY - frame.top - EDGE.top) / (HEIGHT - EDGE.top - EDGE.bottom);
    const value = place.high - Math.max(0, Math.min(1, part)) * (place.high - place.low);
    return { position: Math.max(0, Math.min(shown.input.length - 1, position)), value };
  }

  // The numbers from the last point to this one, so that a fast stroke has no gaps.
  function stroke(point) {
    const from = last ?? point, steps = Math.max(1, Math.abs(point.position - from.position)), input = [...shown.input];
    for (let step = 0; step <= steps; step++) {
      const position = Math.round(from.position + ((point.position - from.position) * step) / steps);
      input[position] = from.value + ((point.value - from.value) * step) / steps;
    }
    last = point;
    at = point.position;
    set(input);
  }

  function set(input) {
    shown = { ...shown, input, wanted: [] }; // nobody knows what is right for what was drawn
    draw();
    changed(input);
  }

  function tell() {
    const predicted = shown.prediction[at], wanted = shown.wanted[at];
    told(`position ${at}: input ${shown.input[at].toFixed(2)}${predicted === undefined ? "" : `, predicted ${predicted.toFixed(2)}`}${wanted === undefined ? "" : `, right ${wanted.toFixed(2)}`}`);
  }

  root.addEventListener("pointerdown", (event) => {
    if (!shown) return;
    root.setPointerCapture(event.pointerId);
    root.focus({ preventScroll: true });
    stroke(under(event));
    event.preventDefault();
  });
  root.addEventListener("pointermove", (event) => {
    if (last) return stroke(under(event));
    if (!shown) return;
    at = under(event).position;
    draw();
    tell();
  });
  for (const kind of ["pointerup", "pointercancel"]) root.addEventListener(kind, () => { last = null; });
  root.addEventListener("keydown", (event) => {
    const [across, up] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] ?? [0, 0];
    if (!shown || (!across && !up)) return;
    event.preventDefault();
    at = Math.max(0, Math.min(shown.input.length - 1, (at ?? 0) + across));
    if (up) set(shown.input.with(at, shown.input[at] + up * STEP * (place.high - place.low)));
    else draw();
    tell();
  });
  new ResizeObserver(draw).observe(parent);
  return {
    root,
    update(found) {
      shown = last ? { ...found, input: shown.input, wanted: [] } : found; // a stroke goes on
      draw();
      if (at !== null) tell();
    },
  };
}
