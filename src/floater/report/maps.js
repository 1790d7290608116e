// Encodings: a heat map on canvas, and the path through space beside it.

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const { length, dim, scales } = packed;
  const size = length * dim, half = planes.length / 2;
  return scales.map((scale, site) => {
    const table = new Float32Array(size), whole = new Int32Array(dim);
    for (let i = 0; i < size; i++) {
      const coded = planes[site * size + i] + 256 * planes[half + site * size + i];
      whole[i % dim] += (coded >> 1) ^ -(coded & 1);
      table[i] = whole[i % dim] * scale;
    }
    return table;
  });
}

function ramp(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(place), stops.length - 2);
  return stops[i].map((from, c) => Math.round(from + (stops[i + 1][c] - from) * (place - i)));
}

const DIVERGING = {
  light: [[5, 48, 97], [67, 147, 195], [247, 246, 242], [230, 133, 74], [122, 36, 8]],
  dark: [[150, 214, 255], [44, 116, 176], [27, 30, 37], [190, 92, 34], [255, 205, 150]],
};
const TIME = { light: [[0, 34, 78], [66, 78, 108], [124, 123, 120], [181, 158, 86], [225, 190, 40]], dark: [[84, 124, 200], [120, 140, 170], [150, 150, 140], [205, 180, 100], [255, 233, 69]] };

// The first two principal components of rows [count, dim], by power iteration on their products.
function plane(table, count, dim) {
  const mean = new Float64Array(dim), rows = Float64Array.from(table.subarray(0, count * dim));
  rows.forEach((value, i) => (mean[i % dim] += value / count));
  for (let i = 0; i < rows.length; i++) rows[i] -= mean[i % dim];
  const products = multiply(rows, count, dim);
  let total = 0;
  for (let i = 0; i < count; i++) total += products[i * count + i];
  return [0, 1].map(() => {
    let vector = Float64Array.from({ length: count }, (_, i) => Math.cos(i + 1)), value = 0;
    for (let round = 0; round < 120; round++) {
      const next = new Float64Array(count);
      for (let i = 0; i < count; i++) for (let j = 0; j < count; j++) next[i] += products[i * count + j] * vector[j];
      value = Math.hypot(...next);
      if (value < 1e-30) break;
      vector = next.map((entry) => entry / value);
    }
    for (let i = 0; i < count; i++) for (let j = 0; j < count; j++) products[i * count + j] -= value * vector[i] * vector[j];
    const size = Math.sqrt(Math.max(value, 0));
    return { points: vector.map((entry) => entry * size), share: total > 0 ? value / total : 0 };
  });
}

function multiply(rows, count, dim) {
  const found = new Float64Array(count * count);
  for (let i = 0; i < count; i++)
    for (let j = 0; j <= i; j++) {
      let sum = 0;
      for (let d = 0; d < dim; d++) sum += rows[i * dim + d] * rows[j * dim + d];
      found[i * count + j] = found[j * count + i] = sum;
    }
  return found;
}

class EncodingCard {
  // `settings()` → { view, order, path, shown } and `dark()` come from the page.
  constructor(place, packed, settings, dark) {
    Object.assign(this, { place, packed, settings, dark, tables: null, at: null });
    this.box = document.getElementById(`map-${place}`);
    this.pathBox = document.getElementById(`path-${place}`);
    this.readout = document.getElementById(`map-${place}-readout`);
    this.site = document.getElementById(`site-${place}`);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.box.append(this.canvas);
    this.lines = new LineChart(this.pathBox, { hidden: (line) => this.off.has(line.name), toggle: (line) => this.switch(line.name), readout: null, small: true });
    this.off = new Set();
    this.site.addEventListener("change", () => this.draw());
    for (const kind of ["pointermove", "pointerdown"]) this.canvas.addEventListener(kind, (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.move(null));
    this.box.addEventListener("keydown", (event) => this.key(event));
    unpack(packed).then((tables) => {
      this.tables = tables;
      this.draw();
      this.box.dataset.drawn = "true";
    });
  }

  switch(name) {
    if (!this.off.delete(name)) this.off.add(name);
    this.drawPath();
  }

  draw() {
    if (!this.tables || !this.box.clientWidth) return;
    const { view, order, shown } = this.settings(), { dim, length, orders } = this.packed;
    const site = Number(this.site.value), table = this.tables[site];
    this.count = Math.min(shown, length);
    this.similar = view === "similarity";
    this.columns = this.similar ? this.count : dim;
    const still = order === "as-is" || (order === "auto" && this.packed.ordered);
    this.order = this.similar || still ? null : orders[site];
    this.values = this.similar ? multiply(table, this.count, dim) : table;
    const inner = this.similar ? Math.min(this.packed.trained || this.count, this.count) : this.count; // untrained positions may dwarf the others
    const sizes = Float32Array.from(this.values.subarray(0, inner * this.columns), Math.abs).filter((_, i) => !this.similar || i % this.columns < inner).sort();
    this.limit = (this.similar ? sizes.at(-1) : sizes[Math.floor(0.995 * (sizes.length - 1))]) || 1;
    this.paint();
    this.move(this.at);
    this.drawPath();
  }

  value(row, column) {
    return this.values[row * this.columns + (this.order ? this.order[column] : column)];
  }

  paint() {
    const image = new ImageData(this.columns, this.count), stops = DIVERGING[this.dark() ? "dark" : "light"];
    const colours = Array.from({ length: 511 }, (_, i) => ramp(stops, i / 510));
    for (let row = 0; row < this.count; row++)
      for (let column = 0; column < this.columns; column++) {
        const share = (this.value(row, column) / this.limit + 1) / 2;
        const colour = colours[Math.round(Math.min(Math.max(share, 0), 1) * 510)];
        image.data.set([...colour, 255], 4 * (row * this.columns + column));
      }
    this.picture = document.createElement("canvas");
    [this.picture.width, this.picture.height] = [this.columns, this.count];
    this.picture.getContext("2d").putImageData(image, 0, 0);
    this.colours = colours;
  }

  stage() {
    const width = this.box.clientWidth, height = this.similar ? Math.min(Math.max(240, width - 110), 420) : 290, scale = window.devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [width * scale, height * scale];
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    this.frame = { left: 40, top: 6, width: width - 40 - 62, height: height - 6 - 38 };
    return { context, width, height };
  }

  render() {
    const { context, width, height } = this.stage(), { left, top, width: w, height: h } = this.frame;
    const style = getComputedStyle(this.readout), ink = getComputedStyle(this.box).color;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, left, top, w, h);
    context.font = `12px ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.textAlign = "right";
    for (const value of ticks(0, this.count - 1, h / 50)) context.fillText(show(value), left - 6, top + ((value + 0.5) / this.count) * h + 4);
    context.textAlign = "center";
    for (const value of ticks(0, this.columns - 1, w / 70)) context.fillText(show(value * (this.similar ? 1 : this.packed.step)), left + ((value + 0.5) / this.columns) * w, top + h + 16);
    const words = this.similar ? "position j" : this.order ? "dimension, fastest first" : "dimension";
    context.fillText(words, left + w / 2, height - 4);
    for (let i = 0; i < h; i++) {
      context.fillStyle = `rgb(${this.colours[Math.round(510 * (1 - i / h))].join(",")})`;
      context.fillRect(left + w + 10, top + i, 10, 1.5);
    }
    context.fillStyle = style.color;
    context.textAlign = "left";
    for (const [share, value] of [[0, this.limit], [0.5, 0], [1, -this.limit]]) context.fillText(show(value, 2), left + w + 24, top + share * (h - 9) + 9);
    context.strokeStyle = ink;
    const { trained } = this.packed;
    if (trained && trained < this.count) {
      context.setLineDash([5, 4]);
      const y = top + (trained / this.count) * h;
      context.strokeRect(left, y, w, 0);
      if (this.similar) context.strokeRect(left + (trained / this.count) * w, top, 0, h);
      context.setLineDash([]);
    }
    if (this.at) {
      const [row, column] = this.at;
      const cell = [left + (column / this.columns) * w, top + (row / this.count) * h, w / this.columns, h / this.count];
      context.lineWidth = 1.5;
      context.strokeRect(cell[0] - 3, cell[1] - 3, cell[2] + 6, cell[3] + 6);
    }
  }

  point(event) {
    if (!this.frame) return;
    const box = this.canvas.getBoundingClientRect(), { left, top, width, height } = this.frame;
    const column = Math.floor(((event.clientX - box.left - left) / width) * this.columns);
    const row = Math.floor(((event.clientY - box.top - top) / height) * this.count);
    const inside = row >= 0 && row < this.count && column >= 0 && column < this.columns;
    this.move(inside ? [row, column] : null);
  }

  key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Escape") this.move(null);
    if (!step || !this.frame) return;
    event.preventDefault();
    const [row, column] = this.at ?? [0, 0], bound = (value, end) => Math.min(Math.max(value, 0), end - 1);
    this.move(this.at ? [bound(row + step[0], this.count), bound(column + step[1], this.columns)] : [0, 0]);
  }

  move(at) {
    this.at = at && at[0] < this.count && at[1] < this.columns ? at : null;
    this.render();
    if (!this.at) {
      this.readout.textContent = "";
      return;
    }
    const [row, column] = this.at, value = show(this.value(row, column), 3);
    const time = show(row * this.packed.delta, 4), dimension = (this.order ? this.order[column] : column) * this.packed.step;
    this.readout.textContent = this.similar
      ? `p(${row}) · p(${column}) = ${value}`
      : `position ${row} (t = ${time}), dimension ${dimension}: ${value}`;
  }

  drawPath() {
    const table = this.tables[Number(this.site.value)], { dim, step, orders } = this.packed;
    if (this.settings().path === "time") {
      const order = orders[Number(this.site.value)], few = Math.min(5, dim);
      const chosen = Array.from({ length: few }, (_, i) => order[Math.floor(((i + 0.5) * dim) / few)]);
      const x = Array.from({ length: this.count }, (_, i) => i);
      const series = chosen.map((d) => ({ name: `dimension ${d * step}`, run: null, x, y: x.map((i) => table[i * dim + d]), low: null, high: null }));
      this.lines.draw({ x_label: "position", y_label: "value", names: null, series });
      return;
    }
    this.lines.legend.replaceChildren();
    this.drawPlane(plane(table, this.count, dim));
  }

  drawPlane([first, second]) {
    const width = this.pathBox.clientWidth, height = Math.round(Math.min(300, Math.max(210, width * 0.6)));
    const [x0, x1] = extent([...first.points], 0.08), [y0, y1] = extent([...second.points], 0.08);
    const x = (value) => 16 + ((value - x0) / (x1 - x0)) * (width - 32), y = (value) => height - 40 - ((value - y0) / (y1 - y0)) * (height - 52);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
    const places = [...first.points].map((value, i) => [x(value), y(second.points[i])]);
    svg("path", { d: places.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join(""), class: "trail" }, root);
    const stops = TIME[this.dark() ? "dark" : "light"];
    places.forEach(([cx, cy], i) => svg("circle", { cx, cy, r: 2.4, fill: `rgb(${ramp(stops, i / (this.count - 1)).join(",")})` }, root));
    svg("circle", { cx: places[0][0], cy: places[0][1], r: 7, class: "ring" }, root);
    const { trained } = this.packed;
    if (trained && trained < this.count) mark(svg("g", { class: "s1" }, root), "diamond", ...places[trained], 5);
    const percent = (share) => `${Math.round(100 * share)} %`;
    const ends = trained && trained < this.count ? ", ◆ end of training lengths" : "";
    svg("text", { x: 4, y: height - 20 }, root, `○ position 0${ends}; dark to bright is time`);
    svg("text", { x: 4, y: height - 4 }, root, `across ${percent(first.share)} of the variance, upwards ${percent(second.share)}`);
    this.pathBox.replaceChildren(root);
  }
}
