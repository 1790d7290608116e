"use strict";
// Charts as inline SVG: lines with intervals, and rows of dots. Drawn anew when their box, the theme or the runs shown change.

const SHAPES = ["circle", "square", "triangle", "diamond"];
const dashes = (index) => ["none", "7 4", "2 4", "9 3 2 3"][Math.floor(index / 4) % 4];

function svg(tag, attributes, parent, words) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words !== undefined) made.textContent = words;
  if (parent) parent.append(made);
  return made;
}

function ticks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * span; i++) found.push(i * step);
  return found;
}

function show(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return Number(value.toPrecision(Math.max(digits, size >= 1000 ? 7 : 0))).toLocaleString("en", { maximumFractionDigits: 6 });
}

function mark(parent, shape, x, y, r) {
  if (shape === "square") return svg("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, class: "mark" }, parent);
  if (shape === "triangle") return svg("path", { d: `M${x} ${y - 1.3 * r}L${x + 1.2 * r} ${y + r}H${x - 1.2 * r}Z`, class: "mark" }, parent);
  if (shape === "diamond") return svg("path", { d: `M${x} ${y - 1.4 * r}L${x + 1.4 * r} ${y}L${x} ${y + 1.4 * r}L${x - 1.4 * r} ${y}Z`, class: "mark" }, parent);
  return svg("circle", { cx: x, cy: y, r, class: "mark" }, parent);
}

function extent(values, pad) {
  const good = values.filter((value) => value !== null && value !== undefined);
  if (!good.length) return [0, 1];
  let low = good.reduce((a, b) => Math.min(a, b)), high = good.reduce((a, b) => Math.max(a, b));
  const room = (high - low || Math.abs(high) * 0.1) * pad;
  if (low === 0 && high === 0 && pad) return [0, 1]; // nothing but zeros: not a scale of millionths
  return [low >= 0 ? Math.max(low - room, 0) : low - room, high + room]; // what cannot be negative gets no room below zero
}

// One chart in a box. `options`: hidden(series) → boolean, toggle(series), readout element, small.
class LineChart {
  constructor(box, options) {
    Object.assign(this, { box, ...options, at: null, panel: null });
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    box.after(this.legend);
    box.addEventListener("pointermove", (event) => this.point(event.clientX - box.getBoundingClientRect().left));
    box.addEventListener("pointerdown", (event) => this.point(event.clientX - box.getBoundingClientRect().left));
    box.addEventListener("pointerleave", () => this.move(null));
    box.addEventListener("keydown", (event) => this.key(event));
  }

  draw(panel) {
    if (panel !== this.panel) this.at = null;
    this.panel = panel;
    const width = this.box.clientWidth;
    if (!width) return;
    const height = this.small ? 220 : Math.round(Math.min(400, Math.max(240, width * 0.42)));
    this.shown = panel.series.map((line, index) => ({ line, index: line.run ?? index })).filter(({ line }) => !this.hidden(line));
    this.places = [...new Set(this.shown.flatMap(({ line }) => line.x))].sort((a, b) => a - b);
    this.layout(panel, width, height);
    this.box.replaceChildren(this.canvas);
    this.drawLegend(panel);
    this.move(this.at);
  }

  layout(panel, width, height) {
    const [left, right, top, bottom] = [54, 14, 14, 44];
    const lines = this.shown.map(({ line }) => line);
    const [x0, x1] = panel.names ? [-0.4, panel.names.length - 0.6] : extent(this.places, 0);
    const [y0, y1] = extent(lines.flatMap((line) => [...line.y, ...(line.low ?? []), ...(line.high ?? [])]), 0.06);
    this.x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
    this.y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
    this.frame = { left, right: width - right, top, bottom: height - bottom };
    const root = (this.canvas = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }));
    for (const value of ticks(y0, y1, height / 60)) {
      svg("line", { x1: left, x2: width - right, y1: this.y(value), y2: this.y(value), class: "axis" }, root);
      svg("text", { x: left - 8, y: this.y(value) + 4, "text-anchor": "end" }, root, show(value));
    }
    if (panel.names) {
      const skip = Math.ceil((panel.names.length * 64) / (width - left - right));
      panel.names.forEach((name, i) => {
        if (i % skip === 0) svg("text", { x: this.x(i), y: height - bottom + 18, "text-anchor": "middle" }, root, name);
      });
    } else {
      for (const value of ticks(x0, x1, (width - left - right) / 90))
        svg("text", { x: this.x(value), y: height - bottom + 18, "text-anchor": "middle" }, root, show(value));
    }
    svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, root, panel.x_label);
    svg("text", { x: 2, y: 8 }, root, panel.y_label);
    this.shown.forEach(({ line, index }, place) => this.drawLine(root, panel, line, index, place));
    this.overlay = svg("g", {}, root);
  }

  drawLine(root, panel, line, index, place) {
    const group = svg("g", { class: `line s${index % 8}` }, root);
    const few = line.x.length <= 30;
    const shift = panel.names ? (place - (this.shown.length - 1) / 2) * 7 : 0;
    const points = line.x.map((x, i) => [this.x(x) + shift, line.y[i]]).map(([x, y]) => (y === null ? null : [x, this.y(y)]));
    if (line.low && few) {
      line.x.forEach((x, i) => {
        if (line.low[i] !== null && line.high[i] !== null)
          svg("line", { x1: this.x(x) + shift, x2: this.x(x) + shift, y1: this.y(line.low[i]), y2: this.y(line.high[i]), class: "bar-line", opacity: 0.55 }, group);
      });
    } else if (line.low) {
      const good = line.x.map((x, i) => i).filter((i) => line.low[i] !== null && line.high[i] !== null);
      const edge = [...good.map((i) => [line.x[i], line.high[i]]), ...good.reverse().map((i) => [line.x[i], line.low[i]])];
      svg("path", { d: edge.map(([x, y], i) => `${i ? "L" : "M"}${this.x(x)} ${this.y(y)}`).join("") + "Z", class: "band" }, group);
    }
    let path = "", pen = false;
    for (const point of points) {
      if (point) path += `${pen ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      pen = point !== null;
    }
    svg("path", { d: path, class: "curve", "stroke-dasharray": dashes(index) }, group);
    if (few) points.forEach((point) => point && mark(group, SHAPES[index % 4], point[0], point[1], 3.6));
  }

  drawLegend(panel) {
    this.legend.replaceChildren(
      ...panel.series.map((line, place) => {
        const index = line.run ?? place;
        const item = document.createElement("li"), button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", String(!this.hidden(line)));
        const key = svg("svg", { viewBox: "0 0 26 12", class: `s${index % 8}`, "aria-hidden": "true" });
        const group = svg("g", { class: "plot" }, key);
        svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, class: "curve", "stroke-dasharray": dashes(index) }, group);
        mark(group, SHAPES[index % 4], 13, 6, 3.4);
        button.append(key, line.name);
        button.addEventListener("click", () => {
          this.toggle(line);
          this.legend.querySelectorAll("button")[place]?.focus();
        });
        item.append(button);
        return item;
      }),
    );
  }

  point(pixels) {
    if (!this.places?.length) return;
    const distance = (x) => Math.abs(this.x(x) - pixels);
    this.move(this.places.reduce((best, x) => (distance(x) < distance(best) ? x : best)));
  }

  key(event) {
    if (event.target !== this.box || !this.places?.length) return;
    const now = this.places.indexOf(this.at), last = this.places.length - 1;
    const next = { ArrowRight: now + 1, ArrowLeft: now < 0 ? last : now - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.move(null);
    if (next === undefined) return;
    event.preventDefault();
    this.move(this.places[Math.min(Math.max(next, 0), last)]);
  }

  move(at) {
    this.at = this.places?.includes(at) ? at : null;
    this.overlay?.replaceChildren();
    if (!this.readout) return;
    if (this.at === null) {
      this.readout.textContent = "";
      return;
    }
    const where = this.x(this.at);
    svg("line", { x1: where, x2: where, y1: this.frame.top, y2: this.frame.bottom, class: "cursor" }, this.overlay);
    const words = this.shown.map(({ line, index }) => {
      const i = line.x.indexOf(this.at);
      if (i < 0 || line.y[i] === null) return null;
      if (!this.panel.names) mark(svg("g", { class: `s${index % 8}` }, this.overlay), SHAPES[index % 4], where, this.y(line.y[i]), 4.5);
      const spread = line.low && line.low[i] !== null ? ` (${show(line.low[i])} to ${show(line.high[i])})` : "";
      return `${line.name} ${show(line.y[i])}${spread}`;
    });
    const name = this.panel.names ? this.panel.names[this.at] : show(this.at);
    this.readout.textContent = `${this.panel.x_label} ${name}: ${words.filter(Boolean).join(" · ")}`;
  }
}

// Scores as dots with intervals, one row a run.
class DotChart {
  constructor(box, options) {
    Object.assign(this, { box, ...options });
  }

  draw(panel) {
    const width = this.box.clientWidth;
    if (!width) return;
    const shown = panel.series.filter((line) => !this.hidden(line));
    const [left, right, row] = [12, 12, 46];
    const height = shown.length * row + 44;
    const [x0, x1] = extent(shown.flatMap((line) => [line.y[0], ...(line.low ?? []), ...(line.high ?? [])]), 0.15);
    const x = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - right);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
    for (const value of ticks(x0, x1, width / 110)) {
      svg("line", { x1: x(value), x2: x(value), y1: 4, y2: height - 38, class: "axis" }, root);
      svg("text", { x: x(value), y: height - 22, "text-anchor": "middle" }, root, show(value));
    }
    svg("text", { x: width / 2, y: height - 4, "text-anchor": "middle" }, root, panel.x_label);
    shown.forEach((line, i) => {
      const y = i * row + 32, index = line.run ?? i;
      const group = svg("g", { class: `dot s${index % 8}` }, root);
      const spread = line.low ? ` ± ${((line.high[0] - line.low[0]) / 2).toFixed(2)}` : "";
      svg("text", { x: left, y: y - 12, class: "strong" }, group, `${line.name}  ${line.y[0].toFixed(2)}${spread}`);
      if (line.low) svg("line", { x1: x(line.low[0]), x2: x(line.high[0]), y1: y, y2: y, class: "bar-line" }, group);
      mark(group, SHAPES[index % 4], x(line.y[0]), y, 5.5);
    });
    this.box.replaceChildren(root);
  }
}
