(function () {
  "use strict";
  var MOST_NAMES = 40; // along an axis: more would not be readable

  function option(select, text, value) {
    var item = document.createElement("option");
    item.textContent = text;
    item.value = value;
    select.appendChild(item);
  }

  function start(article) {
    var data = JSON.parse(article.querySelector("script").textContent), canvas = article.querySelector("canvas");
    var queries = article.querySelector(".queries"), keys = article.querySelector(".keys");
    var layers = article.querySelector(".layer"), heads = article.querySelector(".head"), out = article.querySelector("output");
    var rank = article.querySelector(".rank");
    var scheme = window.matchMedia("(prefers-color-scheme: dark)"), decoded = data.layers.map(function () { return null; });

    function layer() { return data.layers[layers.value]; }
    function weights() {
      if (!decoded[layers.value]) decoded[layers.value] = bytesOf(layer().weights);
      return decoded[layers.value];
    }
    function listHeads() {
      var before = heads.value || "0", count = layer().shape[0];
      heads.textContent = "";
      for (var head = 0; head < count; head++) option(heads, String(head + 1), head);
      heads.value = Number(before) < count ? before : "0";
    }
    function draw() {
      var shape = layer().shape, rows = shape[1], columns = shape[2], all = weights(), offset = heads.value * rows * columns;
      var values = all.subarray(offset, offset + rows * columns);
      canvas.style.aspectRatio = columns + " / " + rows;
      axis(queries, 0);
      axis(keys, 1);
      rank.textContent = ranks(layer().rank, heads.value);
      drawPixels(canvas, { rows: rows, columns: columns, values: values, largest: 255, signed: false }, colors(scheme.matches));
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
      return names ? JSON.stringify(names[at]) + " (" + (at + 1) + ")" : "position " + (at + 1);
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
      var weight = weights()[(heads.value * shape[1] + row) * shape[2] + column] / 255 * layer().max;
      out.textContent = label(row, 0) + " looks at " + label(column, 1) + ": " + weight.toPrecision(2);
      canvas.title = out.textContent;
    }

    data.layers.forEach(function (one, index) { option(layers, one.name, index); });
    listHeads();
    layers.addEventListener("change", function () { listHeads(); draw(); });
    heads.addEventListener("change", draw);
    canvas.addEventListener("mousemove", tell);
    canvas.addEventListener("mouseleave", function () { out.textContent = "hover over a weight"; });
    scheme.addEventListener("change", draw);
    draw();
  }

  document.querySelectorAll("article.map").forEach(start);
})();
