// The page: which runs are shown, which theme, and what is drawn when.

const report = JSON.parse(document.getElementById("report-data").textContent);
const off = new Set(); // runs that are switched off, by number
let printing = false;

const themes = ["auto", "light", "dark"];
const themeButton = document.getElementById("theme");
let theme = "auto";
try {
  theme = themes.includes(localStorage.getItem("floater-theme")) ? localStorage.getItem("floater-theme") : "auto";
} catch { /* a page from a file may have no storage */ }

const media = window.matchMedia("(prefers-color-scheme: dark)");
const dark = () => !printing && (theme === "auto" ? media.matches : theme === "dark");

function setTheme(next) {
  theme = next;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themeButton.textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem("floater-theme", theme);
  } catch { /* see above */ }
  drawAll();
}

function toggleRun(run) {
  if (!off.delete(run)) off.add(run);
  for (const part of document.querySelectorAll(`[data-run="${run}"]`)) part.hidden = off.has(run);
  const box = document.querySelector(`[data-toggle="${run}"]`);
  if (box) box.checked = !off.has(run);
  drawAll();
}

const charts = report.charts.map((chart, number) => {
  const box = document.querySelector(`[data-chart="${number}"]`);
  const select = document.getElementById(`chart-${number}-panel`);
  const alone = new Set(); // series without a run
  const options = {
    readout: document.getElementById(`chart-${number}-readout`),
    hidden: (line) => (line.run === null ? alone.has(line.name) : off.has(line.run)),
    toggle: (line) => {
      if (line.run !== null) return toggleRun(line.run);
      if (!alone.delete(line.name)) alone.add(line.name);
      draw();
    },
  };
  const view = chart.kind === "dots" ? new DotChart(box, options) : new LineChart(box, options);
  const draw = () => view.draw(chart.panels[select ? Number(select.value) : 0]);
  select?.addEventListener("change", draw);
  new ResizeObserver(draw).observe(box);
  return draw;
});

const chosen = (key) => document.getElementById(key)?.value;
const settings = () => ({ view: chosen("view"), order: chosen("order"), path: chosen("path"), shown: Number(chosen("shown") ?? Infinity) });
const cards = report.encodings.map((packed, place) => packed && new EncodingCard(place, packed, settings, dark)).filter(Boolean);
for (const card of cards) new ResizeObserver(() => card.draw()).observe(card.box);
for (const key of ["view", "order", "path"]) document.getElementById(key)?.addEventListener("change", () => cards.forEach((card) => card.draw()));
document.getElementById("shown")?.addEventListener("input", (event) => {
  document.getElementById("shown-value").textContent = event.target.value;
  cards.forEach((card) => card.draw());
});

function drawAll() {
  charts?.forEach((draw) => draw());
  cards?.forEach((card) => card.draw());
}

for (const box of document.querySelectorAll("[data-toggle]")) box.addEventListener("change", () => toggleRun(Number(box.dataset.toggle)));
themeButton.addEventListener("click", () => setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]));
media.addEventListener("change", drawAll);
for (const [event, value] of [["beforeprint", true], ["afterprint", false]])
  window.addEventListener(event, () => {
    printing = value;
    drawAll();
  });
setTheme(theme);
