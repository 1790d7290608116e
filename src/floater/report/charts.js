"use strict";
// Charts as inline SVG: lines with intervals, and rows of dots. They are redrawn when their box,
// the theme or the selection of runs changes.

const SHAPES = ["circle", "square", "triangle", "diamond"];
const dashes = (index) => ["none", "7 4", "2 4", "9 3 2 3"][Math.floor(index / 4) % 4];

function svg(tag, attributes, parent, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function svgRoot(width, height) {
  const viewBox = `0 0 ${width} ${height}`;
  return svg("svg", { viewBox, width, height, "aria-hidden": "true" });
}

function ticks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const sizes = [1, 2, 2.5, 5, 10].map((factor) => factor * power);
  const step = sizes.find((size) => size >= rough * 0.999);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * span; i++)
    values.push(i * step);
  return values;
}

function format(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  const rounded = Number(value.toPrecision(Math.max(digits, size >= 1000 ? 7 : 0)));
  return rounded.toLocaleString("en", { maximumFractionDigits: 6 });
}

function mark(parent, shape, x, y, r) {
  const path = (d) => svg("path", { d, class: "mark" }, parent);
  if (shape === "square") {
    const sides = { width: 2 * r, height: 2 * r };
    return svg("rect", { x: x - r, y: y - r, ...sides, class: "mark" }, parent);
  }
  if (shape === "triangle")
    return path(`M${x} ${y - 1.3 * r}L${x + 1.2 * r} ${y + r}H${x - 1.2 * r}Z`);
  if (shape === "diamond") {
    const side = 1.4 * r;
    return path(`M${x} ${y - side}L${x + side} ${y}L${x} ${y + side}L${x - side} ${y}Z`);
  }
  return svg("circle", { cx: x, cy: y, r, class: "mark" }, parent);
}

function extent(values, pad) {
  const present = values.filter((value) => value !== null && value !== undefined);
  if (!present.length) return [0, 1];
  const low = present.reduce((a, b) => Math.min(a, b));
  const high = present.reduce((a, b) => Math.max(a, b));
  const room = (high - low || Math.abs(high) * 0.1) * pad;
  if (low === 0 && high === 0 && pad) return [0, 1]; // only zeros: avoid a scale of millionths
  // values that are never negative get no room below zero
  return [low >= 0 ? Math.max(low - room, 0) : low - room, high + room];
}

const polyline = (points) =>
  points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// One chart in a box. `options`: hidden(line) → boolean, toggle(line), readout element, small.
class LineChart {
  constructor(box, options) {
    Object.assign(this, { box, ...options, at: null, panel: null });
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    box.after(this.legend);
    for (const kind of ["pointermove", "pointerdown"])
      box.addEventListener(kind, (event) =>
        this.point(event.clientX - box.getBoundingClientRect().left),
      );
    box.addEventListener("pointerleave", () => this.move(null));
    box.addEventListener("keydown", (event) => this.key(event));
  }

  draw(panel) {
    if (panel !== this.panel) this.at = null;
    this.panel = panel;
    const width = this.box.clientWidth;
    if (!width) return;
    const height = this.small ? 220 : Math.round(Math.min(400, Math.max(240, width * 0.42)));
    this.shown = panel.series
      .map((line, index) => ({ line, index: line.run ?? index }))
      .filter(({ line }) => !this.hidden(line));
    this.xs = [...new Set(this.shown.flatMap(({ line }) => line.x))].sort((a, b) => a - b);
    this.layout(panel, width, height);
    this.box.replaceChildren(this.root);
    this.drawLegend(panel);
    this.move(this.at);
  }

  layout(panel, width, height) {
    const [left, right, top, bottom] = [54, 14, 14, 44];
    const [x0, x1] = panel.names ? [-0.4, panel.names.length - 0.6] : extent(this.xs, 0);
    const ys = ({ line }) => [...line.y, ...(line.low ?? []), ...(line.high ?? [])];
    const [y0, y1] = extent(this.shown.flatMap(ys), 0.06);
    const [innerWidth, innerHeight] = [width - left - right, height - top - bottom];
    this.x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * innerWidth;
    this.y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * innerHeight;
    this.frame = { top, bottom: height - bottom };
    const root = (this.root = svgRoot(width, height));
    for (const value of ticks(y0, y1, height / 60)) {
      const y = this.y(value);
      svg("line", { x1: left, x2: width - right, y1: y, y2: y, class: "axis" }, root);
      svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, root, format(value));
    }
    const below = (x, y, text) => svg("text", { x, y, "text-anchor": "middle" }, root, text);
    if (panel.names) {
      const stride = Math.ceil((panel.names.length * 64) / innerWidth);
      panel.names.forEach((name, i) => {
        if (i % stride === 0) below(this.x(i), height - bottom + 18, name);
      });
    } else {
      // updates are integers, and so are their ticks
      const integers = this.xs.every(Number.isInteger);
      const fits = (value) => !integers || Math.abs(value - Math.round(value)) < 1e-9;
      for (const value of ticks(x0, x1, innerWidth / 90).filter(fits))
        below(this.x(value), height - bottom + 18, format(value));
    }
    below((left + width - right) / 2, height - 6, panel.x_label);
    svg("text", { x: 2, y: 8 }, root, panel.y_label);
    this.shown.forEach(({ line, index }, order) => this.drawLine(panel, line, index, order));
    this.overlay = svg("g", {}, root);
  }

  drawLine(panel, line, index, order) {
    const group = svg("g", { class: `line s${index % 8}` }, this.root);
    const few = line.x.length <= 30;
    // lines over bins are set apart, so that their intervals do not cover each other
    const shift = panel.names ? (order - (this.shown.length - 1) / 2) * 7 : 0;
    if (line.low) this.drawIntervals(group, line, few, shift);
    const points = line.x.map((x, i) =>
      line.y[i] === null ? null : [this.x(x) + shift, this.y(line.y[i])],
    );
    let path = "", connected = false;
    for (const point of points) {
      if (point) path += `${connected ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      connected = point !== null;
    }
    svg("path", { d: path, class: "curve", "stroke-dasharray": dashes(index) }, group);
    if (few)
      points.forEach((point) => point && mark(group, SHAPES[index % 4], ...point, 3.6));
  }

  drawIntervals(group, line, few, shift) {
    const measured = [...line.x.keys()].filter(
      (i) => line.low[i] !== null && line.high[i] !== null,
    );
    if (few) {
      for (const i of measured) {
        const x = this.x(line.x[i]) + shift;
        const ends = { x1: x, x2: x, y1: this.y(line.low[i]), y2: this.y(line.high[i]) };
        svg("line", { ...ends, class: "bar-line", opacity: 0.55 }, group);
      }
      return;
    }
    const edge = [
      ...measured.map((i) => [this.x(line.x[i]), this.y(line.high[i])]),
      ...measured.reverse().map((i) => [this.x(line.x[i]), this.y(line.low[i])]),
    ];
    svg("path", { d: polyline(edge) + "Z", class: "band" }, group);
  }

  drawLegend(panel) {
    this.legend.replaceChildren(
      ...panel.series.map((line, order) => {
        const index = line.run ?? order;
        const item = document.createElement("li"), button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", String(!this.hidden(line)));
        const attributes = { viewBox: "0 0 26 12", class: `s${index % 8}`, "aria-hidden": "true" };
        const key = svg("svg", attributes);
        const group = svg("g", { class: "plot" }, key);
        const ends = { x1: 0, x2: 26, y1: 6, y2: 6 };
        svg("line", { ...ends, class: "curve", "stroke-dasharray": dashes(index) }, group);
        mark(group, SHAPES[index % 4], 13, 6, 3.4);
        button.append(key, line.name);
        button.addEventListener("click", () => {
          this.toggle(line);
          this.legend.querySelectorAll("button")[order]?.focus();
        });
        item.append(button);
        return item;
      }),
    );
  }

  point(pixels) {
    if (!this.xs?.length) return;
    const distance = (x) => Math.abs(this.x(x) - pixels);
    this.move(this.xs.reduce((best, x) => (distance(x) < distance(best) ? x : best)));
  }

  key(event) {
    if (event.target !== this.box || !this.xs?.length) return;
    const now = this.xs.indexOf(this.at), last = this.xs.length - 1;
    const keys = { ArrowRight: now + 1, ArrowLeft: now < 0 ? last : now - 1, Home: 0, End: last };
    const next = keys[event.key];
    if (event.key === "Escape") this.move(null);
    if (next === undefined) return;
    event.preventDefault();
    this.move(this.xs[Math.min(Math.max(next, 0), last)]);
  }

  move(at) {
    this.at = this.xs?.includes(at) ? at : null;
    this.overlay?.replaceChildren();
    if (!this.readout) return;
    if (this.at === null) {
      this.readout.textContent = "";
      return;
    }
    const x = this.x(this.at), { top, bottom } = this.frame;
    svg("line", { x1: x, x2: x, y1: top, y2: bottom, class: "cursor" }, this.overlay);
    const values = this.shown.map(({ line, index }) => {
      const i = line.x.indexOf(this.at);
      if (i < 0 || line.y[i] === null) return null;
      if (!this.panel.names) {
        const group = svg("g", { class: `s${index % 8}` }, this.overlay);
        mark(group, SHAPES[index % 4], x, this.y(line.y[i]), 4.5);
      }
      const measured = line.low && line.low[i] !== null;
      const interval = measured ? ` (${format(line.low[i])} to ${format(line.high[i])})` : "";
      return `${line.name} ${format(line.y[i])}${interval}`;
    });
    const name = this.panel.names ? this.panel.names[this.at] : format(this.at);
    const text = values.filter(Boolean).join(" · ");
    this.readout.textContent = `${this.panel.x_label} ${name}: ${text}`;
  }
}

// Scores as dots with intervals, one row per run.
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
    const values = (line) => [line.y[0], ...(line.low ?? []), ...(line.high ?? [])];
    const [x0, x1] = extent(shown.flatMap(values), 0.15);
    const x = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - right);
    const root = svgRoot(width, height);
    const centered = { "text-anchor": "middle" };
    for (const value of ticks(x0, x1, width / 110)) {
      svg("line", { x1: x(value), x2: x(value), y1: 4, y2: height - 38, class: "axis" }, root);
      svg("text", { x: x(value), y: height - 22, ...centered }, root, format(value));
    }
    svg("text", { x: width / 2, y: height - 4, ...centered }, root, panel.x_label);
    shown.forEach((line, i) => {
      const y = i * row + 32, index = line.run ?? i;
      const group = svg("g", { class: `dot s${index % 8}` }, root);
      const interval = line.low ? ` ± ${((line.high[0] - line.low[0]) / 2).toFixed(2)}` : "";
      const label = `${line.name}  ${line.y[0].toFixed(2)}${interval}`;
      svg("text", { x: left, y: y - 12, class: "strong" }, group, label);
      if (line.low) {
        const ends = { x1: x(line.low[0]), x2: x(line.high[0]), y1: y, y2: y };
        svg("line", { ...ends, class: "bar-line" }, group);
      }
      mark(group, SHAPES[index % 4], x(line.y[0]), y, 5.5);
    });
    this.box.replaceChildren(root);
  }
}
