// Charts of a run over time, drawn by uPlot. Each says its last values as text, too.
"use strict";

/** A colour of the page's theme, as a canvas takes it. */
function color(name) {
  const probe = element("span", { style: `color: var(--${name})` });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** The plots and their elements, by name. */
const drawn = new Map();

const HEIGHT = 170;

/** Draws a chart, or gives the one that is there new data. The first of `data` is the x axis. `says`: its values in words. */
function chart(parent, name, label, data, series, says, scale = {}) {
  const known = drawn.get(name);
  if (known) {
    known.picture.setAttribute("aria-label", says);
    known.plot.setData(data);
    return known;
  }
  const id = "chart-" + drawn.size;
  const place = element("div", { "aria-hidden": "true" });
  const picture = element("div", { role: "img", "aria-label": says }, place);
  const figure = element("figure", { "aria-labelledby": id }, element("figcaption", { id }, label), picture);
  parent.append(figure);
  const axis = { stroke: color("quiet"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 } };
  const width = () => Math.max(200, picture.clientWidth);
  const plot = new uPlot(
    {
      width: width(),
      height: HEIGHT,
      scales: { x: { time: false }, y: scale },
      axes: [axis, { ...axis, size: 56, values: (_, values) => values.map((v) => (v !== null && Math.abs(v) >= 1000 ? short(v) : v)) }],
      series: [{ label: data.axis ?? "seconds" }, ...series],
      legend: { show: false },
      cursor: { drag: { x: true, y: false } },
    },
    data,
    place,
  );
  new ResizeObserver(() => plot.setSize({ width: width(), height: HEIGHT })).observe(picture);
  const made = { plot, picture, figure };
  drawn.set(name, made);
  return made;
}

const line = (label, name) => ({ label, stroke: color(name), width: 1.5, points: { show: false } });

/** A legend of classes and texts below the title of a chart. */
function legend(figure, entries) {
  const made = element("p", { class: "legend" }, ...entries.map(([name, text]) => element("span", { class: name }, text)));
  figure.querySelector(".legend")?.remove();
  figure.querySelector("figcaption").after(made);
}

/** The last value of a line, the least and the most, in words. */
function inNumbers(values, text) {
  const known = values.filter((value) => value != null);
  if (known.length === 0) return "no value yet";
  const [least, most] = [Math.min(...known), Math.max(...known)];
  return `${text(known.at(-1))} at last, between ${text(least)} and ${text(most)}`;
}

/** What a sum that grows adds per second, over a hundredth of the run: a step may take longer than the time between two samples. */
function rate(seconds, sums) {
  const span = Math.max(1, Math.round(seconds.length / 100));
  return sums.map((sum, i) => {
    if (i === 0) return null;
    const before = Math.max(0, i - span);
    const time = seconds[i] - seconds[before];
    return time > 0 ? Math.max(0, sum - sums[before]) / time : null;
  });
}

/** The scale of what begins at 0. */
const FROM_ZERO = { range: (_, __, most) => [0, most || 1] };

function overTime(run) {
  const { seconds, rows, all_rows, bytes: passed, store_bytes, logloss, auc, stages, links } = run.history ?? { seconds: [] };
  if (seconds.length < 2) return;
  const single = (name, label, values, shown, text, scale) => chart($("charts"), name, label, [seconds, values], [shown], inNumbers(values, text), scale);
  single("rate", "rows per second", rate(seconds, all_rows ?? rows), line("rows/s", "busy"), short, FROM_ZERO);
  // Rows that are made, not read, come from no store.
  const stored = store_bytes?.at(-1) > 0;
  single("bytes", stored ? "bytes per second from the store" : "bytes per second that the source passed on", rate(seconds, stored ? store_bytes : passed), line("bytes/s", "busy"), short, FROM_ZERO);
  const digits = (value) => value.toFixed(4);
  single("logloss", "running logloss", logloss.map((value, i) => (rows[i] > 0 ? value : null)), line("logloss", "blocked"), digits);
  single("auc", "running AUC", auc, line("AUC", "starved"), digits);
  for (const stage of stages) stageOverTime(stage, seconds);
  for (const link of links ?? []) {
    single("link " + link.to, `batches waiting before ${link.to}`, link.depth, line("batches", "waiting"), String, FROM_ZERO);
  }
}

/** The shares of a stage's time, one above the other: their sum is the time that the stage had begun and not ended. */
function stageOverTime(stage, seconds) {
  let sum = seconds.map(() => 0);
  const last = [];
  const layers = PARTS.map((part) => {
    const share = rate(seconds, stage[part]).map((value, i) => (value === null ? null : (100 * value) / Math.max(1, stage.replicas[i])));
    last.push(Math.min(1, (share.at(-1) ?? 0) / 100));
    sum = sum.map((value, i) => value + (share[i] ?? 0));
    return sum.map((value, i) => (share[i] === null ? null : value));
  });
  const series = PARTS.map((part) => ({ label: part, stroke: color(part), fill: color(part), width: 0, points: { show: false } }));
  // The highest is drawn first, so that those below stay visible.
  const data = [seconds, ...layers.reverse()];
  const { figure } = chart($("stages"), "stage " + stage.name, `${stage.name}, percent of its time`, data, series.reverse(), `at last ${inWords(last)}`, { range: [0, 100] });
  legend(figure, PARTS.map((part, i) => [part, `${part} ${percent(last[i])}`]));
}
