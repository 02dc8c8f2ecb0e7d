// The page of one run, or of two beside each other: a text goes to the server, what a model makes of it is drawn.
// What a person chose stands in the address behind '#', so that a link shows the same again.

import { cellAt, drawMap, element, largestOf, mapAsCsv, mapAsSvg } from "/static/attention.js";
import { drawLines } from "/static/attention_lines.js";
import { bytesOf, colors, drawPixels, floatsOf } from "/static/attention_pixels.js";
import { passages, overlapping } from "/static/attention_spans.js";
import { drawTokens, quotedToken, told } from "/static/attention_tokens.js";
import { seriesChart } from "/static/series.js";
import { followWatched } from "/static/watched.js";
import { drawReasons, titleOf } from "/static/why.js";

const PAUSE = 350; // milliseconds without a key before a text is looked at
const form = document.querySelector("form.asking");
const dark = matchMedia("(prefers-color-scheme: dark)");
const shared = { view: "matrix", shown: "weights" };
const examples = JSON.parse(form.dataset.series ?? "null"); // of a model that reads numbers
const CLASSES = 8; // that are shown
const SEEN = 0.005; // share of a head's weight beyond untrained heads that is told
const FLAT = 100; // positions of a line to begin with where no example says how many there are
let series = null; // what is read then: {values, wanted}
const field = (name) => form.elements.namedItem(name);
const valueOf = (name) => field(name)?.value ?? "";

async function ask(address, body) {
  const answer = await fetch(address, {
    method: "POST", headers: { "content-type": "application/json", accept: "application/json" }, body: JSON.stringify(body),
  }).catch(() => { throw new Error("the server is out of reach; begin attnlab view again and load this page anew"); });
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw new Error(found.error);
  return found;
}

class Panel {
  constructor(root, number) {
    this.root = root;
    this.number = number;
    this.address = root.dataset.address;
    this.off = new Set();
    this.chosen = null; // {layer, head}: name and number
    this.cell = null; // of the large map: {row, column}, either may be missing
    this.trusted = !("ownCode" in root.dataset);
    this.find = (selector) => root.querySelector(selector);
    this.find(".trust button")?.addEventListener("click", () => {
      this.trusted = true;
      this.find(".trust").hidden = true;
      this.refresh();
    });
    this.listen();
    const watched = this.find(".watched");
    if (watched) followWatched(`${this.address}/watched`, watched, (told) => this.stands(told));
  }

  stands({ state, trouble }) {
    const shown = this.find(".facts .state");
    shown.className = `state ${state}`;
    shown.textContent = state;
    if (trouble) this.say(trouble);
  }

  get body() {
    return {
      text: valueOf("text"), target: valueOf("target"), how: valueOf("how") || "zero",
      off: [...this.off].sort(), trust: this.trusted, ...series,
    };
  }

  listen() {
    this.find(".switch").addEventListener("click", () => this.toggle([this.chosen]));
    this.find(".all-on").addEventListener("click", () => {
      this.off.clear();
      this.changed();
    });
    this.find(".measure")?.addEventListener("click", () => this.measure());
    this.find(".close").addEventListener("click", () => this.explain(null));
    this.find(".grid").addEventListener("keydown", (event) => this.keyInGrid(event));
    this.root.addEventListener("keydown", (event) => {
      const other = event.target.closest("select") || event.ctrlKey || event.metaKey || event.altKey;
      if (event.key === "Escape" && this.explained) this.explain(null);
      if (event.key === "x" && !other && this.chosen) this.toggle([this.chosen]);
    });
    for (const button of this.root.querySelectorAll("[data-save]")) {
      button.addEventListener("click", () => this.save(button.dataset.save));
    }
    new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width !== this.width) this.drawLarge(); // not where a longer sentence below made it higher
      this.width = contentRect.width;
    }).observe(this.find(".large"));
  }

  // ---- asking ----

  // One question at a time; what changed meanwhile is asked next.
  async refresh() {
    if (!this.trusted || (!this.found && field("text") && this.root.dataset.kind !== "maps" && !valueOf("text").trim())) return;
    this.again = true;
    if (this.busy) return;
    this.busy = true;
    this.root.classList.add("busy");
    while (this.again) {
      this.again = false;
      await this.look();
    }
    this.root.classList.remove("busy");
    this.busy = false;
  }

  async look() {
    const body = this.body;
    try {
      const found = await ask(`${this.address}/look`, body);
      this.say("");
      await this.show(found, body);
      if (["sentences", "trees"].includes(this.root.dataset.kind) && !this.again) this.showWritten(await ask(`${this.address}/write`, body));
    } catch (error) {
      await this.takeBack(body);
      this.say(error.message);
    }
  }

  // What is shown stays, and heads are off as they were for it.
  async takeBack(body) {
    const kept = this.asked?.off ?? [];
    if (kept.join() === body.off.join()) return;
    this.off = new Set(kept);
    if (this.found) this.changedHeads();
    else await this.look();
  }

  say(sentence) {
    this.find(".trouble").hidden = !sentence;
    this.find(".trouble").textContent = sentence;
  }

  // ---- showing ----

  async show(found, body) {
    this.found = found;
    this.asked = body;
    this.maps = new Map();
    this.find(".seen").hidden = false;
    this.find(".timing").textContent = found.ms ? `${found.ms} ms` : "";
    this.find(".called").textContent = found.notes.join(" ");
    if (found.series) this.showSeries();
    else this.showReading();
    this.showTotal();
    this.weigh();
    compare();
    await this.showHeads();
    this.explain(this.explained);
    keepInAddress();
  }

  showSeries() {
    this.readings = [];
    if (!this.chart) {
      const box = element("div", { className: "drawn" }), out = element("p", { className: "told" }), legend = element("p", { className: "legend" });
      out.setAttribute("aria-live", "polite");
      legend.append(...["input", "right", "predicted", "predicted with all heads on"].map((text, at) => element("span", { className: `key ${["input", "wanted", "prediction", "before"][at]}`, textContent: text })));
      this.find(".reading").replaceChildren(box, legend, out);
      this.chart = seriesChart(box, { changed: drawn, told: (sentence) => { out.textContent = sentence; } });
    }
    const { input, wanted, prediction, before } = this.found.series, off = this.asked.off.length > 0;
    this.chart.update({ input, wanted, prediction, before: off ? before : [] });
    this.find(".drawn + .legend .wanted").hidden = !wanted.length;
    this.find(".drawn + .legend .before").hidden = !off;
  }

  showError() {
    const { prediction_error: error, before_error: before } = this.found.series, out = this.find(".total");
    if (error === null) return out.replaceChildren("What is right for a drawn sequence nobody knows.");
    out.replaceChildren("mean squared error ", element("b", { textContent: error.toPrecision(3) }));
    if (this.asked.off.length) out.append("; ", element("span", { className: error > before ? "worse" : "better", textContent: `${signed(error - before)}` }), ` with ${headsOff(this.asked)}`);
    return out;
  }

  // ---- why a token was predicted ----

  // Asked again after each look and for each head; null closes.
  async explain(at) {
    const box = this.find(".why"), given = this.found?.vocab_size && at > 0;
    this.explained = given ? at : null;
    box.hidden = !given;
    keepInAddress();
    if (!given) return;
    const asking = (this.asking = {}), { found } = this; // what is asked later overtakes
    box.classList.add("busy");
    try {
      const told = await ask(`${this.address}/explain`, { ...this.asked, piece: at, ...this.chosen });
      if (asking !== this.asking || found !== this.found) return;
      const head = this.chosen ? this.nameOf(this.chosen) : "";
      this.find(".why h3").textContent = titleOf(told);
      box.lastElementChild.replaceChildren(...drawReasons(told, { head, sides: found.sides, nameOf: (name) => this.nameOfPart(name) }));
    } catch (error) {
      if (asking !== this.asking) return;
      this.find(".why h3").textContent = error.message;
      box.lastElementChild.replaceChildren();
    }
    if (asking === this.asking) box.classList.remove("busy");
  }

  // ---- heads on held-out data ----

  // One head a question, so that looks come between them; a second click stops.
  async measure() {
    const button = this.find(".measure"), bar = this.find(".measuring progress"), out = this.find(".measured");
    if (this.measuring) {
      this.measuring = false;
      return;
    }
    this.measuring = true;
    this.worths = new Map();
    button.textContent = "Stop";
    bar.hidden = false;
    bar.removeAttribute("value"); // untrained models are looked at first
    try {
      const how = this.asked.how, found = (this.heldOut = await ask(`${this.address}/heads`, { trust: this.trusted }));
      this.labelHeads();
      for (const [at, place] of found.heads.entries()) {
        if (!this.measuring) break;
        bar.value = at / found.heads.length;
        this.worths.set(place, (await ask(`${this.address}/worth`, { place, how, trust: this.trusted })).worth);
        this.labelHeads();
      }
      out.textContent = `Below each head: what kind it is, beyond heads of untrained models, and its worth: the loss without it less ${found.loss.toPrecision(4)} ${found.unit}, the mean over ${found.positions.toLocaleString("en")} positions of ${found.data}.`;
    } catch (error) {
      out.textContent = error.message;
    }
    this.measuring = false;
    bar.hidden = true;
    button.textContent = "Measure all heads on held-out data";
  }

  // What the heads that are off cost, batch by batch; a later choice overtakes.
  async weigh() {
    const out = this.find(".held-out"), { off, how } = this.asked, choice = `${how} ${off}`;
    if (!out || choice === this.weighed) return;
    this.weighed = choice;
    out.hidden = !off.length;
    out.textContent = "On held-out data: being measured …";
    try {
      let found = { done: !off.length };
      while (!found.done && choice === this.weighed) {
        found = await ask(`${this.address}/cost`, { off, how, trust: this.trusted });
        if (choice === this.weighed) out.replaceChildren(...costSaid(found, this.asked, this.root.dataset.kind));
      }
    } catch (error) {
      if (choice === this.weighed) out.textContent = `On held-out data it cannot be said: ${error.message}`;
    }
  }

  labelHeads() {
    this.root.classList.toggle("labelled", Boolean(this.heldOut));
    for (const [place, cell] of this.heads ?? []) {
      const said = cell.querySelector(".said"), [[kind] = []] = kindsOf(this.heldOut, place), worth = this.worths?.get(place);
      said.replaceChildren(...(kind ? [element("span", { textContent: SHORT[kind] ?? kind })] : []), ...(worth === undefined ? [] : [element("span", { className: "worth", textContent: signed(worth) })]));
    }
    this.sayOfHead();
  }

  // What was measured of the head that is shown large.
  sayOfHead() {
    const place = this.chosen && placeOf(this.chosen), kinds = kindsOf(this.heldOut, place), worth = this.worths?.get(place);
    const looks = kinds.map(([kind, more]) => `${kind.replaceAll("-", " ")} ${signed(more, 2)}`).join(", ");
    this.find(".head-said").textContent = [
      worth === undefined ? "" : `Worth ${signed(worth, 4)} ${this.heldOut.unit} on ${this.heldOut.data}.`,
      this.heldOut && Object.keys(this.heldOut.kinds).length ? (looks ? `More than heads of untrained models it looks at: ${looks} (share of its weight).` : "It looks where heads of untrained models look.") : "",
    ].filter(Boolean).join(" ");
  }

  get tokens() {
    return this.found.sides.at(-1)?.tokens ?? []; // of kept maps without names there are none
  }

  showReading() {
    this.readings = this.found.sides.map((side, number) => {
      const box = element("div", { className: "side" });
      if (this.found.sides.length > 1) box.append(element("h3", { textContent: `${side.name}${number ? (this.found.vocab_size ? ", judged" : "") : ", read"}` }));
      const view = drawTokens(side, { compared: this.asked.off.length > 0, chance: Math.log(this.found.vocab_size), pointed: this.pointed, onPoint: (token, at) => this.point(number, token, at), onChoose: this.found.vocab_size && number === this.found.sides.length - 1 ? (at) => this.explain(at) : null });
      box.append(view.root);
      return { box, ...view };
    });
    this.find(".reading").replaceChildren(...(this.root.dataset.kind !== "maps" ? this.readings.map((one) => one.box) : []));
  }

  // What a token of this run covers is marked in the other run.
  point(side, token, at) {
    if (side === this.found.sides.length - 1 && token) this.pointed = at; // shown again after the next look
    for (const panel of panels) {
      if (panel !== this && panel.found?.sides[side]) panel.readings[side].mark(overlapping(panel.found.sides[side].tokens, token?.span));
    }
  }

  // The likeliest classes, with what the heads that are off changed.
  showClasses() {
    const percent = (chance) => `${(100 * chance).toFixed(1)} %`;
    const rows = this.found.classes.slice(0, CLASSES).map(({ name, chance, before }) => {
      const bar = element("span", { className: "bar" }), cells = [element("td", { textContent: name }), element("td", {}, bar), element("td", { textContent: percent(chance) })];
      bar.style.setProperty("--part", chance);
      if (this.asked.off.length) cells.push(element("td", { textContent: `${signed(100 * (chance - before), 1)} points` }));
      return element("tr", {}, ...cells);
    });
    const more = this.found.classes.length - rows.length;
    const said = this.asked.off.length ? `With ${headsOff(this.asked)}` : "It says";
    this.find(".total").replaceChildren(`${said}: `, element("b", { textContent: this.found.classes[0].name }));
    this.find(".written").replaceChildren(element("div", { className: "guesses classes-of" }, element("table", {}, ...rows)), ...(more > 0 ? [element("p", { className: "note", textContent: `and ${more} more classes` })] : []));
  }

  showTotal() {
    if (this.found.series) return this.showError();
    if (this.found.classes) return this.showClasses();
    const judged = this.tokens.filter((token) => token.loss !== null && token.loss !== undefined);
    const out = this.find(".total");
    if (!judged.length) return out.replaceChildren();
    const sum = (name) => judged.reduce((total, token) => total + token[name], 0);
    const loss = sum("loss"), change = loss - sum("before");
    out.replaceChildren("loss ", element("b", { textContent: (loss / judged.length).toFixed(3) }), ` nats per token, ${loss.toFixed(1)} over ${judged.length} token${judged.length > 1 ? "s" : ""}`);
    if (this.asked.off.length) {
      out.append("; ", element("span", { className: change > 0 ? "worse" : "better", textContent: `${signed(change / judged.length)} per token` }), ` with ${headsOff(this.asked)}`);
    }
    return out;
  }

  showWritten({ whole, text }) {
    const lines = [element("p", {}, this.asked.off.length ? "With heads off it writes " : "It writes ", element("q", { textContent: text }))];
    if (this.asked.off.length) {
      lines.push(element("p", { className: "note" }, text === whole ? "The same as with all heads on." : "With all heads on: ", text === whole ? "" : element("q", { textContent: whole })));
    }
    this.find(".written").replaceChildren(...lines);
  }

  // ---- the grid of heads ----

  showHeads() {
    const { layers } = this.found;
    for (const part of this.root.querySelectorAll(".large, .how-to, .measuring")) part.hidden = !layers.length;
    const note = this.root.querySelector(".no-attention") ?? element("p", { className: "note no-attention" });
    note.textContent = layers.length ? "" : "This model has no attention that can be seen: what it reads and predicts is all there is to show.";
    this.find(".heads").append(note);
    if (!layers.length) return this.find(".grid").replaceChildren();
    if (this.chosen && !this.known(this.chosen)) this.say(`There is no head ${this.chosen.head} in ${this.chosen.layer}; the first one is shown.`);
    this.chosen = this.known(this.chosen) ?? { layer: layers[0].name, head: 0 };
    this.group = groupOf(this.layer(this.chosen.layer), this.found);
    this.showTabs();
    this.showGrid();
    return this.showLarge();
  }

  layer(name) {
    return this.found.layers.find((layer) => layer.name === name);
  }

  known(head) {
    const layer = head && this.layer(head.layer);
    return layer && head.head < layer.shape[0] ? head : null;
  }

  get groups() {
    return [...new Set(this.found.layers.map((layer) => groupOf(layer, this.found)))];
  }

  get rows() {
    return this.found.layers.filter((layer) => groupOf(layer, this.found) === this.group);
  }

  showTabs() {
    const groups = this.groups;
    this.find(".tabs").replaceChildren(...(groups.length < 2 ? [] : groups.map((group) => {
      const button = element("button", { type: "button", textContent: group });
      button.setAttribute("aria-pressed", String(group === this.group));
      button.addEventListener("click", () => this.choose({ layer: this.found.layers.find((layer) => groupOf(layer, this.found) === group).name, head: 0 }));
      return button;
    })));
  }

  showGrid() {
    const focused = this.find(".grid").contains(document.activeElement);
    this.heads = new Map();
    this.find(".grid").replaceChildren(...this.rows.map((layer, row) => this.rowOf(layer, row)));
    this.find(".all-on").hidden = !this.off.size;
    this.labelHeads();
    if (focused) this.heads.get(placeOf(this.chosen))?.focus();
  }

  rowOf(layer, row) {
    const name = element("button", { type: "button", className: "layer", textContent: shortLayer(layer, row, this.rows), title: `${layer.name}: all heads off or on` });
    const heads = Array.from({ length: layer.shape[0] }, (_, head) => ({ layer: layer.name, head }));
    name.addEventListener("click", () => this.toggle(heads));
    const title = element("span", {}, name);
    title.setAttribute("role", "rowheader");
    const line = element("div", {}, title, ...this.thumbnails(layer, heads));
    line.setAttribute("role", "row");
    return line;
  }

  thumbnails(layer, heads) {
    const [rows, columns] = layer.thumbnail, all = bytesOf(layer.thumbnails);
    return heads.map((head) => {
      const canvas = element("canvas"), off = this.off.has(placeOf(head));
      const values = all.subarray(head.head * rows * columns, (head.head + 1) * rows * columns);
      drawPixels(canvas, { rows, columns, values, largest: 255, signed: false }, colors(dark.matches));
      const toggle = element("button", { type: "button", textContent: head.head, tabIndex: -1, title: off ? "switch on" : "switch off" });
      toggle.setAttribute("aria-label", `head ${head.head}: ${off ? "switch on" : "switch off"}`);
      toggle.addEventListener("click", (event) => {
        event.stopPropagation();
        this.toggle([head]);
      });
      const cell = element("div", { className: `head${off ? " off" : ""}`, tabIndex: sameHead(head, this.chosen) ? 0 : -1 }, canvas, toggle, element("span", { className: "said" }));
      cell.setAttribute("role", "gridcell");
      cell.setAttribute("aria-selected", String(sameHead(head, this.chosen)));
      cell.setAttribute("aria-label", `${layer.name}, head ${head.head}${off ? ", off" : ""}`);
      cell.addEventListener("click", () => this.choose(head));
      this.heads.set(placeOf(head), cell);
      return cell;
    });
  }

  keyInGrid(event) {
    const rows = this.rows, row = rows.findIndex((layer) => layer.name === this.chosen.layer);
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    const layer = rows[Math.max(0, Math.min(rows.length - 1, row + down))];
    const head = Math.max(0, Math.min(layer.shape[0] - 1, this.chosen.head + right));
    this.choose({ layer: layer.name, head });
    this.heads.get(placeOf(this.chosen)).focus();
  }

  choose(head) {
    this.chosen = head;
    this.cell = null;
    const group = groupOf(this.layer(head.layer), this.found);
    if (group === this.group) this.markChosen();
    else {
      this.group = group;
      this.showTabs();
      this.showGrid();
    }
    keepInAddress();
    this.showLarge();
    this.explain(this.explained);
  }

  markChosen() {
    for (const [place, cell] of this.heads) {
      const chosen = place === placeOf(this.chosen);
      cell.setAttribute("aria-selected", String(chosen));
      cell.tabIndex = chosen ? 0 : -1;
    }
  }

  // All of some heads off, or on where all of them are off.
  toggle(heads) {
    if (this.root.dataset.kind === "maps") return; // there is no model to run
    const places = heads.map(placeOf), on = places.every((place) => this.off.has(place));
    for (const place of places) on ? this.off.delete(place) : this.off.add(place);
    this.changed();
  }

  changed() {
    this.changedHeads();
    this.refresh();
  }

  changedHeads() {
    for (const [place, cell] of this.heads ?? []) cell.classList.toggle("off", this.off.has(place));
    keepInAddress();
  }

  // ---- one head large ----

  async showLarge() {
    const wanted = this.chosen, found = this.found, off = this.off.has(placeOf(wanted));
    const layer = this.layer(wanted.layer);
    this.find(".large h3").textContent = this.nameOf(wanted);
    this.find(".large h3").title = layer.name;
    this.sayOfHead();
    this.find(".switch").textContent = off ? "Switch on" : "Switch off";
    this.find(".switch").setAttribute("aria-pressed", String(off));
    for (const button of this.root.querySelectorAll("[data-view]")) button.setAttribute("aria-pressed", String(button.dataset.view === shared.view));
    this.find(".shown").value = shared.shown;
    try {
      const map = await this.mapOf(wanted);
      if (found !== this.found || !sameHead(wanted, this.chosen)) return;
      this.map = map;
      this.drawLarge();
    } catch (error) {
      this.map = null;
      this.find(".drawing").replaceChildren(element("p", { className: "note", textContent: error.message }));
    }
  }

  nameOf({ layer, head }) {
    const row = this.layer(layer), group = groupOf(row, this.found);
    const rows = this.found.layers.filter((one) => groupOf(one, this.found) === group);
    return `${shortLayer(row, rows.indexOf(row), rows)} · head ${head}`;
  }

  // A part of the model as the grid calls it, where it is a head.
  nameOfPart(name) {
    const [, layer, head] = /^(.*):(\d+)$/.exec(name) ?? [], groups = this.groups.length > 1;
    if (!this.layer(layer)) return name;
    return `${groups ? `${groupOf(this.layer(layer), this.found)}, ` : ""}${this.nameOf({ layer, head: Number(head) })}`;
  }

  // Numbers of a head with the names of both axes; they are asked for once.
  async mapOf(head) {
    const asked = shared.shown === "scores" ? "scores" : "weights", key = `${placeOf(head)} ${asked}`, { maps } = this;
    if (!maps.has(key)) maps.set(key, ask(`${this.address}/map`, { ...this.asked, ...head, shown: asked }));
    const found = await maps.get(key), [rows, columns] = found.shape, layer = this.layer(head.layer);
    if (!found.values) throw new Error(`the ${shared.shown} of this head cannot be seen from outside`);
    let values = floatsOf(found.values);
    if (shared.shown === "values") {
      if (!found.norms) throw new Error("the values of this head cannot be seen from outside");
      values = values.map((weight, at) => weight * found.norms[at % columns]);
    }
    return {
      rows, columns, values, largest: largestOf(values), signed: shared.shown === "scores" || values.some((value) => value < 0),
      rowNames: this.names(layer.sides[0], rows), columnNames: this.names(layer.sides[1], columns),
    };
  }

  names(side, count) {
    const known = this.found.sides[side]?.tokens ?? [];
    return Array.from({ length: count }, (_, at) => known[at]?.text ?? String(at));
  }

  drawLarge() {
    if (!this.map || this.find(".large").hidden) return;
    const box = this.find(".drawing"), width = Math.max(200, box.parentElement.clientWidth - 4), scheme = colors(dark.matches);
    if (shared.view === "lines") this.drawAsLines(box, width, scheme);
    else this.drawAsMatrix(box, width, scheme);
    this.tell();
  }

  drawAsMatrix(box, width, scheme) {
    let canvas = box.querySelector("canvas");
    if (!canvas) {
      canvas = element("canvas", { tabIndex: 0 });
      canvas.setAttribute("role", "img");
      canvas.addEventListener("pointermove", (event) => {
        const frame = canvas.getBoundingClientRect();
        this.read(cellAt(this.map, this.place, event.clientX - frame.left, event.clientY - frame.top));
      });
      canvas.addEventListener("pointerleave", () => this.read(null));
      canvas.addEventListener("keydown", (event) => this.keyInMap(event));
      box.replaceChildren(canvas);
    }
    canvas.setAttribute("aria-label", `Map of ${this.map.rows} queries (rows) by ${this.map.columns} keys (columns); arrow keys read it`);
    this.place = drawMap(canvas, this.map, { width, scheme, scrolls: true, chosen: this.cell?.row >= 0 && this.cell?.column >= 0 ? this.cell : null });
  }

  drawAsLines(box, width, scheme) {
    const scroll = element("div", { className: "lines", tabIndex: 0 });
    scroll.setAttribute("aria-label", "Lines between tokens; arrow keys choose a query");
    scroll.addEventListener("keydown", (event) => this.keyInMap(event));
    box.replaceChildren(scroll);
    this.lines = drawLines(scroll, this.map, { width: width - 20, scheme, chosen: this.cell, tell: (of) => this.read(of) });
  }

  read(cell) {
    if (cell?.row === this.cell?.row && cell?.column === this.cell?.column) return;
    this.cell = cell;
    if (shared.view === "lines") this.lines.emphasize(cell);
    else this.drawAsMatrix(this.find(".drawing"), Math.max(200, this.find(".drawing").parentElement.clientWidth - 4), colors(dark.matches));
    this.tell();
  }

  keyInMap(event) {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    const { rows, columns } = this.map, { row = -1, column = -1 } = this.cell ?? {};
    const next = { row: Math.max(0, Math.min(rows - 1, row + down)), column: Math.max(0, Math.min(columns - 1, column + right)) };
    this.read(shared.view === "lines" ? { row: next.row } : next);
  }

  tell() {
    const { largest, signed: two } = this.map ?? {}, number = largest?.toPrecision(2);
    this.find(".large .ramp").className = `ramp ${two ? "signed" : "plain"}`;
    this.find(".least").textContent = two ? `−${number}` : "0";
    this.find(".most").textContent = number ?? "";
    this.find(".large .told").textContent = this.map ? told(this.map, this.cell, shared) : "";
  }

  // ---- files ----

  async save(kind) {
    if (!this.map) return;
    const name = `${this.root.dataset.path}-${this.chosen.layer}-head-${this.chosen.head}-${shared.shown}`.replaceAll(/[^\p{L}\p{N}_.-]+/gu, "-");
    if (kind === "csv") return download(`${name}.csv`, new Blob([mapAsCsv(this.map)], { type: "text/csv" }));
    const scheme = colors(dark.matches);
    const drawn = shared.view === "lines" ? this.lines.root : mapAsSvg(this.map, scheme);
    const text = new XMLSerializer().serializeToString(drawn);
    if (kind === "svg") return download(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
    const canvas = element("canvas");
    if (shared.view === "lines") await drawSvg(canvas, text, drawn);
    else drawMap(canvas, this.map, { width: 1200, scheme, density: 2 });
    return canvas.toBlob((blob) => download(`${name}.png`, blob));
  }
}

async function drawSvg(canvas, text, drawn) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await picture.decode();
  [canvas.width, canvas.height] = ["width", "height"].map((name) => 2 * Number(drawn.getAttribute(name)));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
}

function download(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const placeOf = ({ layer, head }) => `${layer}:${head}`;
const sameHead = (one, other) => one?.layer === other?.layer && one?.head === other?.head;
const signed = (number, digits = 3) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(digits)}`;
const kindsOf = (heldOut, place) => Object.entries(heldOut?.kinds[place] ?? {}).filter(([, more]) => more >= SEEN);
const headsOff = ({ off }) => `${off.length} head${off.length > 1 ? "s" : ""} off`;
function costSaid({ cost, low, high, unit, sequences, positions, data, done }, asked, kind) {
  if (cost === null) return [`On ${data} the loss is not finite with ${headsOff(asked)}.`];
  const digits = low === null ? 4 : Math.min(8, Math.max(3, 1 - Math.floor(Math.log10(high - low))));
  const interval = low === null ? "" : ` (95 % interval ${signed(low, digits)} to ${signed(high, digits)})`;
  return [
    `On ${data} `, element("span", { className: cost > 0 ? "worse" : "better", textContent: `${signed(cost, digits)} ${unit}` }),
    `${interval} with ${headsOff(asked)}: the mean over ${sequences.toLocaleString("en")} sequences, ${positions.toLocaleString("en")} positions${done ? "" : " so far"}. `,
    `The interval is over sequences of this ${kind === "module" ? "model" : "run"}, not over seeds.`,
  ];
}

const SHORT = { // of a kind of head where there is little room
  "previous-token": "previous", "shifted-2": "2 back", "shifted-3": "3 back", "next-token": "next", "same-position": "itself",
  "first-token": "first", "duplicate-token": "same", induction: "induction", delimiter: "delimiter", local: "local",
};

function groupOf(layer, found) {
  if (found.sides.length < 2) return "attention";
  return { "0,0": "encoder", "1,1": "decoder", "1,0": "cross" }[layer.sides.join()] ?? "attention";
}

// "layer 3" where the first numbers in the names tell layers apart, else the name without what all names begin with.
function shortLayer(layer, row, rows) {
  const numbers = rows.map((one) => /\d+/.exec(one.name.split("#")[0])?.[0]); // behind "#" calls are counted
  if (numbers[row] !== undefined && new Set(numbers).size === rows.length) return `layer ${Number(numbers[row])}`;
  const words = rows.map((one) => one.name.split("."));
  let shared = 0;
  while (rows.length > 1 && words.every((one) => one.length > shared + 1 && one[shared] === words[0][shared])) shared++;
  return words[row].slice(shared).join(".");
}

// ---- two runs ----

function compare() {
  const box = document.querySelector(".apart"), [one, other] = panels;
  box.hidden = !(other && one.found?.vocab_size && other.found?.vocab_size);
  if (box.hidden) return;
  const found = passages(one.tokens, other.tokens);
  const sum = found.reduce((total, passage) => total + passage.difference, 0);
  const names = [one, other].map((panel) => panel.root.dataset.path);
  const [ours, theirs] = [one, other].map((panel, at) => `${names[at]}${panel.asked.off.length ? `, with ${headsOff(panel.asked)},` : ""}`);
  box.querySelector(".note").textContent = found.length
    ? `In all, ${theirs} costs ${Math.abs(sum).toFixed(1)} nats ${sum < 0 ? "less" : "more"} than ${ours.replace(/,$/, "")}. Orange: it costs more there; blue: less.`
    : "The two write translations of their own; type a translation to judge both by the same one.";
  const view = drawTokens({ tokens: found.map((passage) => ({ text: passage.text, loss: passage.other, before: passage.one, guesses: null })) }, { compared: true, chance: 1, onPoint: () => {} });
  const out = box.querySelector(".told");
  view.tokens.forEach((item, at) => {
    const { text, one: first, other: second } = found[at];
    for (const kind of ["pointerenter", "focus"]) {
      item.addEventListener(kind, () => {
        out.textContent = `${quotedToken(text)}: ${first.toFixed(3)} nats in ${names[0]}, ${second.toFixed(3)} in ${names[1]} (${signed(second - first)})`;
      });
    }
  });
  box.querySelector(".tokens").replaceWith(view.list);
}

// ---- the address ----

function keepInAddress() {
  if (!ready) return;
  const kept = new URLSearchParams();
  for (const name of ["text", "target", "how"]) if (valueOf(name)) kept.set(name, valueOf(name));
  for (const [name, value] of Object.entries(shared)) kept.set(name, value);
  panels.forEach((panel, number) => {
    if (panel.off.size) kept.set(`off${number || ""}`, [...panel.off].sort().join(","));
    if (panel.chosen) kept.set(`head${number || ""}`, placeOf(panel.chosen));
    if (panel.explained) kept.set(`why${number || ""}`, panel.explained);
  });
  if (series && valueOf("sequence")) kept.set("sequence", valueOf("sequence"));
  else if (series) kept.set("values", series.values.map((value) => Number(value.toFixed(2))).join(","));
  history.replaceState(null, "", `#${kept}`);
}

function readAddress() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const name of ["text", "target", "how"]) if (field(name) && kept.has(name)) field(name).value = kept.get(name);
  if (!valueOf("how")) field("how").value = "zero";
  readSeries(kept);
  if (["matrix", "lines"].includes(kept.get("view"))) shared.view = kept.get("view");
  if (["weights", "scores", "values"].includes(kept.get("shown"))) shared.shown = kept.get("shown");
  panels.forEach((panel, number) => {
    panel.off = new Set((kept.get(`off${number || ""}`) ?? "").split(",").filter(Boolean));
    const [, layer, head] = /^(.*):(\d+)$/.exec(kept.get(`head${number || ""}`) ?? "") ?? [];
    if (layer) panel.chosen = { layer, head: Number(head) };
    panel.explained = Number(kept.get(`why${number || ""}`)) || null;
  });
  chooseExample();
}

// The held-out example that stands in the box, if one does: a person's translation of it can be judged.
function chooseExample() {
  const example = field("example");
  if (!example) return;
  example.selectedIndex = Math.max(0, [...example.options].findIndex((one) => one.value === valueOf("text").trim()));
  if (field("reference")) field("reference").disabled = !example.selectedOptions[0].dataset.target;
}

// ---- sequences of numbers ----

function readSeries(kept) {
  if (!examples) return;
  const values = (kept.get("values") ?? "").split(",").map(Number).filter(Number.isFinite);
  if (kept.has("sequence") || !kept.has("values")) chooseSequence(kept.get("sequence") ?? "0");
  else {
    field("sequence").value = "";
    series = { values, wanted: [] };
  }
}

function chooseSequence(number) {
  field("sequence").value = examples[number] ? number : "";
  series = examples[number] ?? { values: Array(examples[0]?.values.length ?? FLAT).fill(0), wanted: [] };
}

function drawn(values) {
  series = { values, wanted: [] };
  field("sequence").value = "";
  clearTimeout(waiting);
  waiting = setTimeout(refresh, PAUSE / 3);
}

// ---- start ----

const panels = [...document.querySelectorAll("section.run")].map((root, number) => new Panel(root, number));
let ready = false, waiting;
const refresh = () => panels.forEach((panel) => panel.refresh());

function redraw() {
  keepInAddress();
  for (const panel of panels) if (panel.chosen && panel.found) panel.showLarge();
}

for (const name of ["text", "target"]) {
  field(name)?.addEventListener("input", () => {
    chooseExample();
    clearTimeout(waiting);
    waiting = setTimeout(refresh, PAUSE);
  });
}
form.addEventListener("submit", (event) => event.preventDefault());
field("how").addEventListener("change", refresh);
field("sequence")?.addEventListener("change", () => {
  chooseSequence(valueOf("sequence"));
  refresh();
});
field("example")?.addEventListener("change", () => {
  const { value } = field("example").selectedOptions[0];
  if (!value) return;
  field("text").value = value;
  chooseExample();
  if (field("target")) field("target").value = "";
  refresh();
});
field("reference")?.addEventListener("click", () => {
  field("target").value = field("example").selectedOptions[0].dataset.target;
  refresh();
});
field("other")?.addEventListener("change", () => {
  const address = new URL(location.href), other = valueOf("other");
  other ? address.searchParams.set("other", other) : address.searchParams.delete("other");
  location.assign(address);
});
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => {
    shared.view = button.dataset.view;
    for (const panel of panels) panel.cell = null;
    redraw();
  });
}
for (const select of document.querySelectorAll("select.shown")) {
  select.addEventListener("change", () => {
    shared.shown = select.value;
    redraw();
  });
}
dark.addEventListener("change", () => {
  for (const panel of panels) if (panel.found) panel.showHeads();
});
addEventListener("hashchange", () => {
  readAddress();
  refresh();
});
readAddress();
ready = true;
refresh();
