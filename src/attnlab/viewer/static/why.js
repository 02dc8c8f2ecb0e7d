// Why a token was predicted: layer by layer, part by part, by what was read. All functions return elements.

import { element, shortName } from "/static/attention.js";

const percent = (chance) => `${(100 * chance).toPrecision(chance < 0.1 ? 2 : 3)} %`;
const signed = (number, digits = 2) => {
  const size = Math.abs(number).toFixed(digits);
  return `${number < 0 && Number(size) ? "−" : "+"}${size}`;
};
const quoted = (text) => `“${shortName(text)}”`;

// What is told of one prediction: `told` is the server's answer, `head` what the head is called, `sides` what was read.
export const titleOf = (told) => `Why ${quoted(told.token)}? The model gives it ${percent(told.probability)}.`;

export function drawReasons(told, { head, sides, nameOf }) {
  return [
    part("Layer by layer", "What the stream would predict if each layer were the last (logit lens).", told.lens, lens),
    part("Part by part", "What adds up to its logit (direct attribution; norms as they stand).", told.parts, (found) => parts(found, nameOf)),
    ...(told.inputs ? [part("By what was read", `Where ${head} looks, beside what the logit hangs on.`, told.inputs, (found) => inputs(found, sides))] : []),
    ...(told.edges ? [part("Without a key", `The keys that ${head} looks at most, hidden from it one at a time.`, told.edges, (found) => edges(found, sides[told.inputs?.side ?? 0]))] : []),
  ];
}

function part(title, note, found, draw) {
  const told = found.error ? [element("p", { className: "note", textContent: found.error })] : draw(found);
  return element("section", {}, element("h4", { textContent: title }), element("p", { className: "note", textContent: note }), ...told);
}

function table(label, head, rows) {
  const made = element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { textContent: text })))), element("tbody", {}, ...rows));
  made.setAttribute("aria-label", label);
  return [made];
}

// Shares are blue as all that has one sign; what has two is blue below zero and orange above.
const sign = (value) => (value < 0 ? "minus" : "plus");

function bar(share, value = null) {
  const made = element("span", { className: `share ${value === null ? "" : sign(value)}` });
  made.style.setProperty("--part", Math.min(1, Math.abs(share)).toFixed(4));
  return made;
}

const row = (...cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, ...[cell].flat())));

function lens(layers) {
  return table("Layer by layer", ["after", "it would write", "this token"], layers.map(({ layer, probability, guess, likeliest }) =>
    row(layer ? `${layer} layer${layer === 1 ? "" : "s"}` : "embedding", `${quoted(guess)} ${percent(likeliest)}`, [bar(probability), ` ${percent(probability)}`])));
}

function parts({ logit, parts: found }, nameOf) {
  const largest = Math.max(...found.map((one) => Math.abs(one.value)), 1e-9);
  return table("Part by part", ["part", `of ${logit.toFixed(2)}`], found.map(({ name, value }) =>
    row(nameOf(name), [bar(value / largest, value), ` ${signed(value)}`])));
}

function inputs(found, sides) {
  const tokens = sides[found.side].tokens, tau = (name) => (found.tau[name] === null ? "" : `, Kendall's τ with attention ${signed(found.tau[name])}`);
  return [
    ...strip("looks", "attention", found.attention, tokens),
    ...strip("gradient", `gradient × input${tau("gradient")}`, found.gradient, tokens),
    ...strip("integrated", `integrated gradients${tau("integrated")}`, found.integrated, tokens),
  ];
}

function strip(name, title, values, tokens) {
  const largest = Math.max(...values.map(Math.abs), 1e-9), line = element("p", { className: `strip ${name}` });
  values.forEach((value, at) => {
    const item = element("span", { textContent: shortName(tokens[at].text), title: signed(value, 3) });
    item.style.setProperty("--part", (Math.abs(value) / largest).toFixed(3));
    if (name !== "looks") item.className = sign(value);
    line.append(item);
  });
  const most = values.map((value, at) => [value, at]).sort((one, other) => Math.abs(other[0]) - Math.abs(one[0])).slice(0, 3);
  line.setAttribute("role", "img");
  line.setAttribute("aria-label", `${title}; most at ${most.map(([value, at]) => `${quoted(tokens[at].text)} ${signed(value, 3)}`).join(", ")}`);
  return [element("p", { className: "legend", textContent: title }), line];
}

function edges({ keys, tau, sentence }, side) {
  const rows = keys.map(({ key, weight, change }) => row(`${quoted(side.tokens[key].text)} (${key})`, weight.toPrecision(2), signed(change, 3)));
  return [
    element("p", { className: "verdict", textContent: sentence }),
    ...table("Without a key", ["key", "weight", "loss without it"], rows),
    ...(tau === null ? [] : [element("p", { className: "note", textContent: `Kendall's τ of weight and change: ${signed(tau)}` })]),
  ];
}
