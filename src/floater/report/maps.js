// Encodings: a heat map on a canvas, and below it the path of the encoding.

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const { length, dim, scales } = packed;
  const size = length * dim, half = planes.length / 2;
  return scales.map((scale, site) => {
    const table = new Float32Array(size), levels = new Int32Array(dim);
    for (let i = 0; i < size; i++) {
      const coded = planes[site * size + i] + 256 * planes[half + site * size + i];
      levels[i % dim] += (coded >> 1) ^ -(coded & 1);
      table[i] = levels[i % dim] * scale;
    }
    return table;
  });
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// The colour at a share (0 to 1) of the way through a list of colours.
function interpolate(stops, share) {
  const position = clamp(share, 0, 1) * (stops.length - 1);
  const i = Math.min(Math.floor(position), stops.length - 2);
  return stops[i].map((from, c) => Math.round(from + (stops[i + 1][c] - from) * (position - i)));
}

const DIVERGING = {
  light: [[5, 48, 97], [67, 147, 195], [247, 246, 242], [230, 133, 74], [122, 36, 8]],
  dark: [[150, 214, 255], [44, 116, 176], [27, 30, 37], [190, 92, 34], [255, 205, 150]],
};
const TIME = {
  light: [[0, 34, 78], [66, 78, 108], [124, 123, 120], [181, 158, 86], [225, 190, 40]],
  dark: [[84, 124, 200], [120, 140, 170], [150, 150, 140], [205, 180, 100], [255, 233, 69]],
};

// The first two principal components of rows [count, dim], by power iteration on their products.
function principalComponents(table, count, dim) {
  const mean = new Float64Array(dim), rows = Float64Array.from(table.subarray(0, count * dim));
  rows.forEach((value, i) => (mean[i % dim] += value / count));
  for (let i = 0; i < rows.length; i++) rows[i] -= mean[i % dim];
  const products = productsOf(rows, count, dim);
  let total = 0;
  for (let i = 0; i < count; i++) total += products[i * count + i];
  return [0, 1].map(() => {
    let vector = Float64Array.from({ length: count }, (_, i) => Math.cos(i + 1)), value = 0;
    for (let round = 0; round < 120; round++) {
      const next = new Float64Array(count);
      for (let i = 0; i < count; i++)
        for (let j = 0; j < count; j++) next[i] += products[i * count + j] * vector[j];
      value = Math.hypot(...next);
      if (value < 1e-30) break;
      vector = next.map((entry) => entry / value);
    }
    for (let i = 0; i < count; i++)
      for (let j = 0; j < count; j++) products[i * count + j] -= value * vector[i] * vector[j];
    const size = Math.sqrt(Math.max(value, 0));
    return { points: vector.map((entry) => entry * size), share: total > 0 ? value / total : 0 };
  });
}

// The products of all pairs of rows [count, count].
function productsOf(rows, count, dim) {
  const products = new Float64Array(count * count);
  for (let i = 0; i < count; i++)
    for (let j = 0; j <= i; j++) {
      let sum = 0;
      for (let d = 0; d < dim; d++) sum += rows[i * dim + d] * rows[j * dim + d];
      products[i * count + j] = products[j * count + i] = sum;
    }
  return products;
}

class EncodingCard {
  // `settings()` → { view, order, path, shown } and `dark()` come from the page.
  constructor(number, packed, settings, dark) {
    Object.assign(this, { packed, settings, dark, tables: null, at: null });
    this.box = document.getElementById(`map-${number}`);
    this.pathBox = document.getElementById(`path-${number}`);
    this.readout = document.getElementById(`map-${number}-readout`);
    this.site = document.getElementById(`site-${number}`);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.box.append(this.canvas);
    this.hiddenLines = new Set();
    this.lines = new LineChart(this.pathBox, {
      hidden: (line) => this.hiddenLines.has(line.name),
      toggle: (line) => this.toggleLine(line.name),
      readout: null,
      small: true,
    });
    this.site.addEventListener("change", () => this.draw());
    for (const kind of ["pointermove", "pointerdown"])
      this.canvas.addEventListener(kind, (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.move(null));
    this.box.addEventListener("keydown", (event) => this.key(event));
    unpack(packed).then((tables) => {
      this.tables = tables;
      this.draw();
      this.box.dataset.drawn = "true";
    });
  }

  toggleLine(name) {
    if (!this.hiddenLines.delete(name)) this.hiddenLines.add(name);
    this.drawPath();
  }

  draw() {
    if (!this.tables || !this.box.clientWidth) return;
    const { view, order, shown } = this.settings(), { dim, length, orders } = this.packed;
    const site = Number(this.site.value), table = this.tables[site];
    this.count = Math.min(shown, length);
    this.similarity = view === "similarity";
    this.columns = this.similarity ? this.count : dim;
    const original = order === "as-is" || (order === "auto" && this.packed.ordered);
    this.order = this.similarity || original ? null : orders[site];
    this.values = this.similarity ? productsOf(table, this.count, dim) : table;
    this.limit = this.colourLimit() || 1;
    this.paint();
    this.move(this.at);
    this.drawPath();
  }

  colourLimit() {
    if (!this.similarity) {
      const values = this.values.subarray(0, this.count * this.columns);
      const sizes = Float32Array.from(values, Math.abs).sort();
      return sizes[Math.floor(0.995 * (sizes.length - 1))];
    }
    // positions beyond training may dwarf the others
    const trained = Math.min(this.packed.trained || this.count, this.count);
    let largest = 0;
    for (let row = 0; row < trained; row++)
      for (let column = 0; column < trained; column++)
        largest = Math.max(largest, Math.abs(this.values[row * this.columns + column]));
    return largest;
  }

  value(row, column) {
    return this.values[row * this.columns + (this.order ? this.order[column] : column)];
  }

  // The map as an image with one pixel per value.
  paint() {
    const image = new ImageData(this.columns, this.count);
    const stops = DIVERGING[this.dark() ? "dark" : "light"];
    this.colours = Array.from({ length: 511 }, (_, i) => interpolate(stops, i / 510));
    for (let row = 0; row < this.count; row++)
      for (let column = 0; column < this.columns; column++) {
        const share = (this.value(row, column) / this.limit + 1) / 2;
        const colour = this.colours[Math.round(clamp(share, 0, 1) * 510)];
        image.data.set([...colour, 255], 4 * (row * this.columns + column));
      }
    this.picture = document.createElement("canvas");
    [this.picture.width, this.picture.height] = [this.columns, this.count];
    this.picture.getContext("2d").putImageData(image, 0, 0);
  }

  // Size the canvas for the screen.
  prepareCanvas() {
    const width = this.box.clientWidth, scale = window.devicePixelRatio || 1;
    const height = this.similarity ? clamp(width - 110, 240, 420) : 290;
    [this.canvas.width, this.canvas.height] = [width * scale, height * scale];
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    this.frame = { left: 40, top: 6, width: width - 40 - 62, height: height - 6 - 38 };
    return { context, height };
  }

  render() {
    const { context, height } = this.prepareCanvas();
    const { left, top, width: w, height: h } = this.frame;
    const style = getComputedStyle(this.readout);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, left, top, w, h);
    context.font = `12px ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.textAlign = "right";
    for (const value of ticks(0, this.count - 1, h / 50))
      context.fillText(format(value), left - 6, top + ((value + 0.5) / this.count) * h + 4);
    context.textAlign = "center";
    const stride = this.similarity ? 1 : this.packed.step;
    for (const value of ticks(0, this.columns - 1, w / 70)) {
      const x = left + ((value + 0.5) / this.columns) * w;
      context.fillText(format(value * stride), x, top + h + 16);
    }
    const dimension = this.order ? "dimension, fastest first" : "dimension";
    context.fillText(this.similarity ? "position j" : dimension, left + w / 2, height - 4);
    this.renderScale(context, style.color);
    this.renderMarks(context);
  }

  renderScale(context, ink) {
    const { left, top, width: w, height: h } = this.frame;
    for (let i = 0; i < h; i++) {
      context.fillStyle = `rgb(${this.colours[Math.round(510 * (1 - i / h))].join(",")})`;
      context.fillRect(left + w + 10, top + i, 10, 1.5);
    }
    context.fillStyle = ink;
    context.textAlign = "left";
    for (const [share, value] of [[0, this.limit], [0.5, 0], [1, -this.limit]])
      context.fillText(format(value, 2), left + w + 24, top + share * (h - 9) + 9);
  }

  // The end of the training lengths, and the cell whose value is shown.
  renderMarks(context) {
    const { left, top, width: w, height: h } = this.frame, { trained } = this.packed;
    context.strokeStyle = getComputedStyle(this.box).color;
    if (trained && trained < this.count) {
      const share = trained / this.count;
      context.setLineDash([5, 4]);
      context.strokeRect(left, top + share * h, w, 0);
      if (this.similarity) context.strokeRect(left + share * w, top, 0, h);
      context.setLineDash([]);
    }
    if (this.at) {
      const [row, column] = this.at, [cellWidth, cellHeight] = [w / this.columns, h / this.count];
      const x = left + column * cellWidth, y = top + row * cellHeight;
      context.lineWidth = 1.5;
      context.strokeRect(x - 3, y - 3, cellWidth + 6, cellHeight + 6);
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
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (event.key === "Escape") this.move(null);
    if (!step || !this.frame) return;
    event.preventDefault();
    const [row, column] = this.at ?? [-step[0], -step[1]];
    const next = [row + step[0], column + step[1]];
    this.move([clamp(next[0], 0, this.count - 1), clamp(next[1], 0, this.columns - 1)]);
  }

  move(at) {
    this.at = at && at[0] < this.count && at[1] < this.columns ? at : null;
    this.render();
    if (!this.at) {
      this.readout.textContent = "";
      return;
    }
    const [row, column] = this.at, value = format(this.value(row, column), 3);
    const time = format(row * this.packed.delta, 4);
    const dimension = (this.order ? this.order[column] : column) * this.packed.step;
    this.readout.textContent = this.similarity
      ? `p(${row}) · p(${column}) = ${value}`
      : `position ${row} (t = ${time}), dimension ${dimension}: ${value}`;
  }

  drawPath() {
    const site = Number(this.site.value), table = this.tables[site];
    if (this.settings().path === "time") {
      this.drawDimensions(table, this.packed.orders[site]);
      return;
    }
    this.lines.legend.replaceChildren();
    this.drawPlane(principalComponents(table, this.count, this.packed.dim));
  }

  // Some dimensions over the positions, from fast to slow ones.
  drawDimensions(table, order) {
    const { dim, step } = this.packed, few = Math.min(5, dim);
    const x = Array.from({ length: this.count }, (_, i) => i);
    const series = Array.from({ length: few }, (_, i) => {
      const d = order[Math.floor(((i + 0.5) * dim) / few)];
      const y = x.map((position) => table[position * dim + d]);
      return { name: `dimension ${d * step}`, run: null, x, y, low: null, high: null };
    });
    this.lines.draw({ x_label: "position", y_label: "value", names: null, series });
  }

  drawPlane([first, second]) {
    const width = this.pathBox.clientWidth;
    const height = Math.round(clamp(width * 0.6, 210, 300));
    const [x0, x1] = extent([...first.points], 0.08), [y0, y1] = extent([...second.points], 0.08);
    const x = (value) => 16 + ((value - x0) / (x1 - x0)) * (width - 32);
    const y = (value) => height - 40 - ((value - y0) / (y1 - y0)) * (height - 52);
    const root = svgRoot(width, height);
    const points = [...first.points].map((value, i) => [x(value), y(second.points[i])]);
    svg("path", { d: polyline(points), class: "trail" }, root);
    const stops = TIME[this.dark() ? "dark" : "light"];
    points.forEach(([cx, cy], i) => {
      const fill = `rgb(${interpolate(stops, i / (this.count - 1)).join(",")})`;
      svg("circle", { cx, cy, r: 2.4, fill }, root);
    });
    svg("circle", { cx: points[0][0], cy: points[0][1], r: 7, class: "ring" }, root);
    const { trained } = this.packed, beyond = trained && trained < this.count;
    if (beyond) mark(svg("g", { class: "s1" }, root), "diamond", ...points[trained], 5);
    const end = beyond ? ", ◆ end of training lengths" : "";
    svg("text", { x: 4, y: height - 20 }, root, `○ position 0${end}; dark to bright is time`);
    const percent = ({ share }) => `${Math.round(100 * share)} %`;
    const shares = `${percent(first)} of the variance, vertical ${percent(second)}`;
    svg("text", { x: 4, y: height - 4 }, root, `horizontal ${shares}`);
    this.pathBox.replaceChildren(root);
  }
}
