// A row of tokens, colored by what they cost a model, with what was held likeliest at each.

import { element, shortName } from "/static/attention.js";

const LEAST_SCALE = 0.5; // nats: smaller changes are not drawn as if they were large

export const quotedToken = (text) => `“${text.replaceAll("\n", "⏎")}”`;
const has = (number) => number !== null && number !== undefined;
const signed = (number) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(2)}`;

// Draws a side; where `compared`, tokens have the color of the change of their loss. `onPoint` is told the token under
// the pointer and its place, or null, `onChoose` the place of one that is clicked; `pointed` is the place of one that was
// pointed at before. Returns the elements and `mark`, which frames tokens by their places.
export function drawTokens(side, { compared, chance, pointed = null, onPoint, onChoose = null }) {
  const { tokens } = side, judged = tokens.some((token) => has(token.loss));
  const words = tokens.some((token) => [...token.text].length > 1 && !token.text.startsWith("<"));
  const changes = tokens.filter((token) => has(token.loss)).map((token) => Math.abs(token.loss - token.before));
  const scale = compared ? Math.max(LEAST_SCALE, ...changes) : chance;
  const list = element("div", { className: `tokens${words ? " words" : ""}` });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", judged ? `Tokens, colored by ${compared ? "the change of their loss" : "their loss"}` : "Tokens");
  const details = element("div", { className: "guesses" });
  const items = tokens.map((token, at) => itemOf(token, at, { compared, scale }));
  const show = (at) => {
    items.forEach((item, number) => {
      item.setAttribute("aria-selected", String(number === at));
      item.tabIndex = number === at ? 0 : -1;
    });
    details.replaceChildren(...detailsOf(tokens[at], compared));
  };
  const point = (at) => {
    show(at);
    onPoint(tokens[at], at);
  };
  items.forEach((item, at) => {
    item.addEventListener("pointerenter", () => point(at));
    item.addEventListener("focus", () => point(at));
    if (onChoose) item.addEventListener("click", () => onChoose(at));
  });
  list.addEventListener("pointerleave", () => onPoint(null));
  list.addEventListener("keydown", (event) => {
    const at = items.indexOf(document.activeElement), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Enter" && items[at]) return onChoose?.(at);
    if (!step || !items[at + step]) return;
    event.preventDefault();
    items[at + step].focus();
  });
  list.append(...items);
  details.append(element("p", { className: "note", textContent: `Point at a token, or move to it with the arrow keys, to see its loss and what was expected there.${onChoose ? " A click, or Enter, tells why." : ""}` }));
  if (items.length) items[0].tabIndex = 0;
  if (tokens[pointed] && judged) show(pointed);
  const root = element("div", {}, list, ...(judged ? [legend(compared, scale), details] : []));
  const mark = (places) => items.forEach((item, at) => item.classList.toggle("linked", places.has(at)));
  return { root, list, tokens: items, mark };
}

function itemOf(token, at, { compared, scale }) {
  const next = token.text === "";
  const item = element("span", { tabIndex: -1, textContent: next ? "▸" : token.text.replaceAll("\n", "⏎\n") });
  item.setAttribute("role", "option");
  item.setAttribute("aria-label", next ? "what comes next" : `${shortName(token.text)}${has(token.loss) ? `, loss ${token.loss.toFixed(2)} nats` : ""}`);
  if (next || /^<(begin|end|pad)>$/.test(token.text)) item.className = "mark";
  if (!has(token.loss)) return item;
  const value = compared ? token.loss - token.before : token.loss;
  item.style.setProperty("--part", Math.min(1, Math.abs(value) / scale).toFixed(3));
  item.style.setProperty("--hue", compared && value > 0 ? "var(--high)" : "var(--low)");
  return item;
}

function detailsOf(token, compared) {
  const said = has(token.loss)
    ? `${quotedToken(token.text)} costs ${token.loss.toFixed(2)} nats, probability ${percent(Math.exp(-token.loss))}` +
      (compared ? `; ${token.before.toFixed(2)} with all heads on (${signed(token.loss - token.before)})` : "")
    : token.text === "" ? "What may come next" : `${quotedToken(token.text)} is given, not predicted`;
  const rows = (token.guesses ?? []).map(([text, chance]) => {
    const bar = element("span", { className: "bar" });
    bar.style.setProperty("--part", chance.toFixed(4));
    return element("tr", { className: text === token.text ? "right" : "" },
      element("td", { textContent: shortName(text) }), element("td", {}, bar), element("td", { textContent: percent(chance) }));
  });
  const body = element("tbody", {}, ...rows), table = element("table", {}, body);
  table.setAttribute("aria-label", "Likeliest tokens here");
  return [element("p", { textContent: said }), ...(rows.length ? [table] : [])];
}

const percent = (chance) => `${(100 * chance).toPrecision(chance < 0.1 ? 2 : 3)} %`;

function legend(compared, scale) {
  const ramp = element("span", { className: `ramp ${compared ? "change" : "loss"}` });
  return element("p", { className: "legend" }, ...(compared
    ? [`loss ${scale.toFixed(1)} nats lower`, ramp, `${scale.toFixed(1)} nats higher`]
    : ["loss 0", ramp, `${scale.toFixed(1)} nats (a guess among all tokens)`]));
}

// What a map says at a cell, a row or a column.
export function told(map, cell, { view, shown }) {
  const name = { weights: "weight", scores: "score", values: "weight × length of the value" }[shown];
  const where = view === "lines" ? "Queries stand on the left, the keys that they look at on the right" : "Queries are rows, the keys that they look at columns";
  if (!cell) return `${where}. Point at one, or move with the arrow keys, to read it.`;
  const { row, column } = cell, value = map.values[row * map.columns + column];
  const query = row >= 0 && `${quotedToken(map.rowNames[row])} (${row})`, key = column >= 0 && `${quotedToken(map.columnNames[column])} (${column})`;
  if (query && key) return `${query} looks at ${key}: ${name} ${Number.isNaN(value) ? "none (masked)" : value.toPrecision(3)}`;
  if (key) return `${key} is looked at`;
  const weights = Array.from(map.values.subarray(row * map.columns, (row + 1) * map.columns));
  const most = weights.map((one, at) => [one, at]).filter(([one]) => !Number.isNaN(one)).sort((one, other) => other[0] - one[0]).slice(0, 3);
  return `${query} looks at ${most.map(([one, at]) => `${quotedToken(map.columnNames[at])} (${at}) ${one.toPrecision(2)}`).join(", ")}`;
}
