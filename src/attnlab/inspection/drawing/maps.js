(function () {
  "use strict";
  var MOST_NAMES = 40; // along an axis: more would not be readable
  var CONTROLS = '<p class="pick"><label>layer <select class="layer"></select></label><label>head <select class="head"></select></label></p>' +
    '<div class="axes"><div class="keys"></div><div class="queries"></div><canvas role="img"></canvas></div>' +
    '<p class="rank note"></p><output>hover over a weight</output>'; // without a script they would do nothing

  function option(select, text, value) {
    var item = document.createElement("option");
    item.textContent = text;
    item.value = value;
    select.appendChild(item);
  }

  function start(article) {
    article.dataset.drawn = "yes";
    article.insertAdjacentHTML("beforeend", CONTROLS);
    var title = article.querySelector("h3"), data = JSON.parse(article.querySelector("script").textContent), canvas = article.querySelector("canvas");
    var queries = article.querySelector(".queries"), keys = article.querySelector(".keys");
    var layers = article.querySelector(".layer"), heads = article.querySelector(".head"), out = article.querySelector("output");
    var rank = article.querySelector(".rank"), heads_small = article.querySelector(".small");
    var preferred = window.matchMedia("(prefers-color-scheme: dark)"), decoded = data.layers.map(function () { return null; });

    function layer() { return data.layers[layers.value]; }
    function scheme() { // a notebook may insist on the other one than is preferred
      return colors(getComputedStyle(article).getPropertyValue("--ink").trim() === colors(true).ink);
    }
    function weights(index) {
      if (!decoded[index]) decoded[index] = bytesOf(data.layers[index].weights);
      return decoded[index];
    }
    function paint(onto, index, head) {
      var shape = data.layers[index].shape, size = shape[1] * shape[2], values = weights(index).subarray(head * size, (head + 1) * size);
      onto.style.aspectRatio = shape[2] + " / " + shape[1];
      drawPixels(onto, { rows: shape[1], columns: shape[2], values: values, largest: 255, signed: false }, scheme());
    }
    function listHeads() {
      var before = heads.value || "0", count = layer().shape[0];
      heads.textContent = "";
      for (var head = 0; head < count; head++) option(heads, String(head), head);
      heads.value = Number(before) < count ? before : "0";
    }
    function draw() {
      paint(canvas, layers.value, Number(heads.value));
      axis(queries, 0);
      axis(keys, 1);
      rank.textContent = ranks(layer().rank, heads.value);
      if (!heads_small) return;
      heads_small.querySelectorAll("button").forEach(function (one) {
        one.setAttribute("aria-pressed", one.value === layers.value + ":" + heads.value);
      });
    }
    function show(index, head) {
      layers.value = index;
      listHeads();
      heads.value = head;
      draw();
    }
    function small(index, head) { // a head to choose
      var button = document.createElement("button"), picture = document.createElement("canvas");
      button.value = index + ":" + head;
      button.title = data.layers[index].name + ", head " + head;
      button.setAttribute("aria-label", button.title);
      button.addEventListener("click", function () { show(index, head); });
      button.appendChild(picture);
      paint(picture, index, head);
      return button;
    }
    function replacePictures() { // those that are seen without a script
      heads_small.querySelectorAll("img").forEach(function (picture, index) {
        for (var head = 0; head < data.layers[index].shape[0]; head++) picture.before(small(index, head));
        picture.remove();
      });
    }
    function ranks(found, head) { // effective ranks of one head; reports of earlier runs have none
      if (!found || found.weights[head] === null) return "";
      var scores = found.scores && found.scores[head] !== null ? ", of the scores " + found.scores[head].toFixed(1) : "";
      var width = found.d_head === null ? "" : " (heads " + found.d_head + " wide)";
      return "effective rank of the weights " + found.weights[head].toFixed(1) + " of " + found.length + scores + width;
    }
    function sequence(side) { // whose positions queries (0) or keys (1) are; null where that is not known
      var length = layer().shape[1 + side], known = layer().axes && data.labels[layer().axes[side]];
      if (known && known.length === length) return known;
      var found = data.labels.filter(function (one) { return one.length === length; });
      return found.length === 1 ? found[0] : null;
    }
    function label(at, side) {
      var names = sequence(side);
      return names ? JSON.stringify(names[at]) + " (" + at + ")" : "position " + at;
    }
    function axis(element, side) {
      var names = layer().shape[1 + side] <= MOST_NAMES ? sequence(side) : null;
      element.textContent = "";
      (names || []).forEach(function (name) {
        var item = document.createElement("span");
        item.textContent = name.trim() || JSON.stringify(name);
        element.appendChild(item);
      });
    }
    function tell(event) {
      var shape = layer().shape, box = canvas.getBoundingClientRect();
      var column = Math.floor((event.clientX - box.left) / box.width * shape[2]);
      var row = Math.floor((event.clientY - box.top) / box.height * shape[1]);
      if (row < 0 || column < 0 || row >= shape[1] || column >= shape[2]) return;
      var weight = weights(layers.value)[(heads.value * shape[1] + row) * shape[2] + column] / 255 * layer().max;
      out.textContent = label(row, 0) + " looks at " + label(column, 1) + ": " + weight.toPrecision(2);
      canvas.title = out.textContent;
    }

    article.querySelectorAll(".still").forEach(function (one) { one.remove(); });
    canvas.setAttribute("aria-label", "attention weights of " + (title ? title.textContent : "the chosen head"));
    data.layers.forEach(function (one, index) { option(layers, one.name, index); });
    listHeads();
    layers.addEventListener("change", function () { listHeads(); draw(); });
    heads.addEventListener("change", draw);
    canvas.addEventListener("mousemove", tell);
    canvas.addEventListener("mouseleave", function () { out.textContent = "hover over a weight"; });
    preferred.addEventListener("change", draw);
    if (heads_small) replacePictures();
    draw();
  }

  document.querySelectorAll("article.map:not([data-drawn])").forEach(start);
})();
