// Numbers to colors, and a map as one pixel per number: what the static report and the viewer draw with. Knows no page.

const STEPS = 256;
const SMALL_STAY_VISIBLE = 0.6; // exponent: a weight of a tenth of the largest has a quarter of its color

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

export function floatsOf(base64) {
  return new Float32Array(bytesOf(base64).buffer); // little-endian, as every browser is
}

const between = (from, to, part) => from.map((low, channel) => Math.round(low + (to[channel] - low) * part));

// Colors of a scheme: ground and ink of the page, and where its scales end.
export function colors(dark) {
  return dark
    ? { paper: [23, 27, 34], ink: "#e6e8ec", muted: "#a3adbb", most: [130, 200, 255], low: [83, 169, 232], high: [240, 138, 69] }
    : { paper: [255, 255, 255], ink: "#1f2430", muted: "#5b6475", most: [3, 57, 108], low: [11, 114, 181], high: [204, 85, 0] };
}

// From the page's ground to blue: weight 0 disappears.
export function sequential(scheme) {
  return Array.from({ length: STEPS }, (_, step) =>
    between(scheme.paper, scheme.most, (step / (STEPS - 1)) ** SMALL_STAY_VISIBLE));
}

// From blue over the page's ground to orange: zero disappears.
export function diverging(scheme) {
  return Array.from({ length: STEPS }, (_, step) => {
    const part = (2 * step) / (STEPS - 1) - 1;
    return between(scheme.paper, part < 0 ? scheme.low : scheme.high, Math.abs(part));
  });
}

// The color of a number; one that is none has that of the ground.
function shade(table, value, { largest, signed }) {
  if (Number.isNaN(value)) return null;
  const part = signed ? (value / largest + 1) / 2 : Math.abs(value) / largest;
  return table[Math.max(0, Math.min(STEPS - 1, Math.round(part * (STEPS - 1))))];
}

// One pixel per number.
export function drawPixels(canvas, map, scheme) {
  const table = map.signed ? diverging(scheme) : sequential(scheme);
  canvas.width = map.columns;
  canvas.height = map.rows;
  const context = canvas.getContext("2d"), image = context.createImageData(map.columns, map.rows), { data } = image;
  for (let at = 0, byte = 0; at < map.rows * map.columns; at++) {
    const color = shade(table, map.values[at], map) ?? scheme.paper;
    for (const channel of color) data[byte++] = channel;
    data[byte++] = 255;
  }
  context.putImageData(image, 0, 0);
}
