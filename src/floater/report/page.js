// The page: which runs are shown, the theme, and when to draw.

const report = JSON.parse(document.getElementById("report-data").textContent);
const hiddenRuns = new Set(); // by number
let printing = false;

const THEME_KEY = "floater-theme";
const themes = ["auto", "light", "dark"];
const themeButton = document.getElementById("theme");
let theme = "auto";
try {
  const stored = localStorage.getItem(THEME_KEY);
  if (themes.includes(stored)) theme = stored;
} catch { /* a page opened from a file may have no storage */ }

const media = window.matchMedia("(prefers-color-scheme: dark)");
const dark = () => !printing && (theme === "auto" ? media.matches : theme === "dark");

function setTheme(next) {
  theme = next;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themeButton.textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch { /* see above */ }
  drawAll();
}

function toggleRun(run) {
  if (!hiddenRuns.delete(run)) hiddenRuns.add(run);
  const hidden = hiddenRuns.has(run);
  for (const element of document.querySelectorAll(`[data-run="${run}"]`)) element.hidden = hidden;
  const box = document.querySelector(`[data-toggle="${run}"]`);
  if (box) box.checked = !hidden;
  drawAll();
}

const charts = report.charts.map((chart, number) => {
  const box = document.querySelector(`[data-chart="${number}"]`);
  const select = document.getElementById(`chart-${number}-panel`);
  const hiddenLines = new Set(); // lines that belong to no run, by name
  const options = {
    readout: document.getElementById(`chart-${number}-readout`),
    hidden: ({ run, name }) => (run === null ? hiddenLines.has(name) : hiddenRuns.has(run)),
    toggle: ({ run, name }) => {
      if (run !== null) return toggleRun(run);
      if (!hiddenLines.delete(name)) hiddenLines.add(name);
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
const settings = () => ({
  view: chosen("view"),
  order: chosen("order"),
  path: chosen("path"),
  shown: Number(chosen("shown") ?? Infinity),
});
const cards = report.encodings
  .map((packed, number) => packed && new EncodingCard(number, packed, settings, dark))
  .filter(Boolean);
const drawCards = () => cards.forEach((card) => card.draw());
for (const card of cards) new ResizeObserver(() => card.draw()).observe(card.box);
for (const key of ["view", "order", "path"])
  document.getElementById(key)?.addEventListener("change", drawCards);
document.getElementById("shown")?.addEventListener("input", (event) => {
  document.getElementById("shown-value").textContent = event.target.value;
  drawCards();
});

function drawAll() {
  charts.forEach((draw) => draw());
  drawCards();
}

for (const box of document.querySelectorAll("[data-toggle]"))
  box.addEventListener("change", () => toggleRun(Number(box.dataset.toggle)));
themeButton.addEventListener("click", () =>
  setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]),
);
media.addEventListener("change", drawAll);
for (const [event, value] of [["beforeprint", true], ["afterprint", false]])
  window.addEventListener(event, () => {
    printing = value;
    drawAll();
  });
setTheme(theme);
