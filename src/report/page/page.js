// Draws the page of a run from its report: the JSON in #run, or while the run goes on, that of run.json every second.
"use strict";

const $ = (id) => document.getElementById(id);
const PARTS = ["busy", "waiting", "starved", "blocked"];

/** Seconds that the bars of a run that goes on look back. */
const RECENT = 10;

/** A colour of the page's theme, as a canvas takes it. */
function color(name) {
  const probe = element("span", { style: `color: var(--${name})` });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const commas = (n) => Math.round(n).toLocaleString("en-US");

function short(n) {
  const unit = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => n >= size);
  return unit ? (n / unit[0]).toPrecision(3) + unit[1] : String(Math.round(n));
}

const percent = (share) => Math.round(100 * share) + "%";
const bytes = (n) => (n >= 1 << 30 ? (n / (1 << 30)).toFixed(1) + " GiB" : Math.round(n / (1 << 20)) + " MiB");

function clock(seconds) {
  const pad = (n) => String(n).padStart(2, "0");
  const s = Math.round(seconds), hours = Math.floor(s / 3600), minutes = Math.floor(s / 60) % 60;
  return hours > 0 ? `${hours}:${pad(minutes)}:${pad(s % 60)}` : `${minutes}:${pad(s % 60)}`;
}

/** The shares of a stage's time, over its wall time. */
const shares = (stage) => PARTS.map((part) => (stage.wall > 0 ? stage[part] / stage.wall : 0));

/** The shares of a stage's time over the last seconds of a run that goes on. */
function sharesNow(stage, history) {
  const known = history?.stages?.find((each) => each.name === stage.name);
  const last = (history?.seconds?.length ?? 0) - 1;
  if (!known || last < 1) return shares(stage);
  const since = Math.max(0, history.seconds.findLastIndex((seconds) => seconds <= history.seconds[last] - RECENT));
  const time = (history.seconds[last] - history.seconds[since]) * Math.max(1, known.replicas[last]);
  return PARTS.map((part) => Math.min(1, Math.max(0, known[part][last] - known[part][since]) / time));
}

function bar(all) {
  const text = PARTS.map((part, i) => `${part} ${percent(all[i])}`).join(", ");
  const made = element("div", { class: "bar", role: "img", "aria-label": text, title: text });
  PARTS.forEach((part, i) => made.append(element("span", { class: part, style: `width:${100 * all[i]}%` })));
  return made;
}

/** At the mean speed so far. */
function timeLeft(run) {
  const share = run.position?.share;
  return run.live && !run.live.over && share > 0 && share < 1 && clock((run.wall * (1 - share)) / share);
}

function figures(run) {
  const progress = run.progress ?? {};
  const seconds = run.wall;
  const list = [
    ["rows", progress.rows && commas(progress.rows)],
    ["rows per second", progress.rows && seconds && short(progress.rows / seconds)],
    ["time", clock(seconds)],
    ["done", run.position?.share != null && percent(run.position.share)],
    ["epoch", run.position?.epochs > 1 && `${run.position.epoch} of ${run.position.epochs}`],
    ["time left", timeLeft(run)],
    ["logloss", progress.rows && progress.logloss?.toFixed(5)],
    ["AUC", progress.auc?.toFixed(5)],
    ["CPU seconds", run.cpu_seconds?.toFixed(1)],
    ["memory, at most", run.peak_bytes && bytes(run.peak_bytes)],
    ["staleness, at most", run.staleness_observed != null && String(run.staleness_observed)],
    ["cores", run.machine?.cores],
    ["rejected rows", commas(Object.values(run.ledger.rejected ?? {}).reduce((sum, rows) => sum + rows, 0))],
    ["newest checkpoint", run.checkpoint],
    ["windows done", run.run && `${commas(run.run.windows_done)} of ${commas(run.run.windows_total)}`],
    ["leases given out again", run.run && String(run.run.lost_leases)],
    ["silent", run.run?.silent?.join(", ")],
  ];
  const shown = list.filter(([, value]) => value);
  $("figures").replaceChildren(
    ...shown.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))),
  );
}

function graph(run) {
  const limit = run.analysis?.limit?.name;
  const now = run.live && !run.live.over;
  const items = run.stages.map((stage, i) => {
    const box = element("div", { class: "stage" + (stage.name === limit ? " limit" : "") });
    const replicas = stage.replicas > 1 ? ` × ${stage.replicas}` : "";
    box.append(element("b", {}, stage.name + replicas), bar(now ? sharesNow(stage, run.history) : shares(stage)), element("small", {}, `${short(stage.rows_in || stage.rows_out)} rows`));
    const item = element("li", {}, box);
    const link = run.links[i];
    if (link) {
      const capacity = link.capacity?.items ?? "";
      const text = `${link.depth} of ${capacity}`;
      item.append(element("div", { class: "link", title: `most at one time: ${link.high_water}` }, element("small", {}, text)));
    }
    return item;
  });
  $("graph").replaceChildren(...items);
  const services = run.services ?? [];
  if (services.length > 0) {
    const rows = services.map((service) =>
      element("tr", {}, element("td", {}, service.name), element("td", { class: "number" }, short(service.items_in)), element("td", { style: "min-width:8rem" }, bar(shares(service)))),
    );
    const head = element("tr", {}, element("th", {}, "shard"), element("th", { class: "number" }, "calls"), element("th", {}, "time"));
    $("services").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  }
}

const drawn = new Map();

/** Draws a chart, or gives the one that is there new data. The first of `data` is the x axis. */
function chart(parent, name, label, data, series, scale = {}) {
  const known = drawn.get(name);
  if (known) {
    known.setData(data);
    return;
  }
  const figure = element("figure", { role: "img", "aria-label": label }, element("figcaption", {}, label));
  parent.append(figure);
  const axis = { stroke: color("quiet"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 } };
  const width = () => Math.max(200, figure.clientWidth - 18);
  const plot = new uPlot(
    {
      width: width(),
      height: 170,
      scales: { x: { time: false }, y: scale },
      axes: [axis, { ...axis, size: 56, values: (_, values) => values.map((v) => (v !== null && Math.abs(v) >= 1000 ? short(v) : v)) }],
      series: [{ label: data.axis ?? "seconds" }, ...series],
      legend: { show: series.length === 2 },
      cursor: { drag: { x: true, y: false } },
    },
    data,
    figure,
  );
  new ResizeObserver(() => plot.setSize({ width: width(), height: 170 })).observe(figure);
  drawn.set(name, plot);
}

const line = (label, name) => ({ label, stroke: color(name), width: 1.5, points: { show: false } });

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

function overTime(run) {
  const { seconds, rows, bytes, logloss, auc, stages, links } = run.history ?? { seconds: [] };
  if (seconds.length < 2) return;
  chart($("charts"), "rate", "rows per second", [seconds, rate(seconds, rows)], [line("rows/s", "busy")], { range: (_, __, most) => [0, most || 1] });
  chart($("charts"), "bytes", "bytes per second, read", [seconds, rate(seconds, bytes)], [line("bytes/s", "busy")], { range: (_, __, most) => [0, most || 1] });
  chart($("charts"), "logloss", "running logloss", [seconds, logloss.map((value, i) => (rows[i] > 0 ? value : null))], [line("logloss", "blocked")]);
  chart($("charts"), "auc", "running AUC", [seconds, auc], [line("AUC", "starved")]);
  for (const stage of stages) {
    // One above the other: the sum of the shares is the time that the stage had begun and not ended.
    let sum = seconds.map(() => 0);
    const layers = PARTS.map((part) => {
      const share = rate(seconds, stage[part]).map((value, i) => (value === null ? null : (100 * value) / Math.max(1, stage.replicas[i])));
      sum = sum.map((value, i) => value + (share[i] ?? 0));
      return sum.map((value, i) => (share[i] === null ? null : value));
    });
    const series = PARTS.map((part) => ({ label: part, stroke: color(part), fill: color(part), width: 0, points: { show: false } }));
    // The highest is drawn first, so that those below stay visible.
    chart($("stages"), "stage " + stage.name, `${stage.name}: busy, waiting, starved and blocked, in percent`, [seconds, ...layers.reverse()], series.reverse(), { range: [0, 100] });
  }
  for (const link of links ?? []) {
    chart($("charts"), "link " + link.to, `batches waiting before ${link.to}`, [seconds, link.depth], [line("batches", "waiting")], { range: (_, __, most) => [0, most || 1] });
  }
}

/** The newest evaluations while the model trained. */
const EVALUATIONS = 50;

function evaluations(run) {
  const { points = [], best, metric, stopped_early } = run.evaluations ?? {};
  if (points.length === 0) return;
  $("evaluation").hidden = false;
  const digits = (value) => value?.toFixed(5) ?? "undefined";
  const grouped = points.some((point) => point.gauc !== null);
  const rows = points.map((point, i) => {
    const values = [commas(point.rows), point.epochs, digits(point.auc), digits(point.logloss)];
    return [`${i + 1}${i === best ? ` (best ${metric})` : ""}`, ...values, ...(grouped ? [digits(point.gauc)] : [])];
  });
  const head = ["evaluation", "rows", "whole epochs", "AUC", "logloss", ...(grouped ? ["GAUC"] : [])];
  table("evaluations", head, rows.slice(-EVALUATIONS));
  $("stopped-early").textContent = stopped_early ? `The training stopped early: the ${metric} did not improve.` : "";
}

function evaluation(run) {
  evaluations(run);
  const found = run.evaluation;
  if (!found) return;
  $("evaluation").hidden = false;
  $("evaluated").textContent = found.text;
  labels(found.evaluation.labels ?? []);
  const bins = found.evaluation.reliability ?? [];
  if (bins.length > 1) {
    const predicted = bins.map((bin) => bin.predicted);
    const data = [predicted, bins.map((bin) => bin.observed), predicted];
    const observed = { label: "observed", stroke: color("busy"), width: 1.5, points: { show: true } };
    chart($("calibration"), "calibration", "share of rows with label 1, by predicted score", data, [observed, line("as predicted", "quiet")]);
  }
}

/** The quality of each of several labels. */
function labels(of) {
  if (of.length === 0) return;
  const digits = (value, n) => value?.toFixed(n) ?? "undefined";
  const row = (each) => [each.label, digits(100 * each.positive_rate, 2) + "%", digits(each.auc, 5), digits(each.logloss, 5), digits(each.normalized_entropy, 4), digits(each.copc, 4)];
  table("labels", ["label", "positive", "AUC", "logloss", "normalised entropy", "COPC"], of.map(row));
}

function table(id, head, rows) {
  const cell = (tag) => (value, i) => element(tag, i > 0 ? { class: "number" } : {}, String(value));
  const body = rows.map((row) => element("tr", {}, ...row.map(cell("td"))));
  $(id).replaceChildren(element("thead", {}, element("tr", {}, ...head.map(cell("th")))), element("tbody", {}, ...body));
}

function tables(run) {
  const { read, delivered, rejected } = run.ledger;
  const reasons = Object.entries(rejected ?? {}).map(([reason, rows]) => [`rejected: ${reason}`, commas(rows)]);
  table("ledger", ["", "rows"], [["read", commas(read)], ["delivered", commas(delivered)], ...reasons]);
  const processes = run.processes ?? [];
  if (processes.length > 0) {
    $("processes").hidden = false;
    const rows = processes.map((each) => {
      const busiest = [...each.stages, ...each.services].sort((a, b) => shares(b)[0] - shares(a)[0])[0];
      return [each.process, each.machine?.cpu?.toFixed(1) ?? "", busiest ? `${busiest.name} ${percent(shares(busiest)[0])}` : ""];
    });
    table("process-table", ["process", "CPU seconds", "busiest"], rows);
  }
}

function draw(run) {
  document.title = $("title").textContent = `Forebay: ${run.job ?? run.name}`;
  const { state, message } = run.verdict;
  $("verdict").textContent = [state, message, run.sentence].filter(Boolean).join(". ");
  figures(run);
  graph(run);
  overTime(run);
  evaluation(run);
  tables(run);
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
}

/** What a person should know about the page itself. Screen readers say it when it changes. */
function notice(text) {
  if ($("notice").textContent !== text) $("notice").textContent = text;
}

/** The run that is shown: when it started, and whether it is over. */
let live;

async function follow() {
  try {
    const answer = await fetch("run.json", { cache: "no-store" });
    if (answer.ok) {
      const run = await answer.json();
      // Another run is there: its stages may be others.
      if (live && run.live.started !== live.started) return location.reload();
      live = run.live;
      draw(run);
      notice(live.over ? "The run has ended." : "");
    } else {
      notice(await answer.text());
    }
  } catch {
    if (!live?.over) notice("This page cannot reach the run. It tries again every second.");
  }
  setTimeout(follow, 1000);
}

// A canvas keeps the colours that it was drawn with.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());

const embedded = $("run").textContent.trim();
if (embedded) draw(JSON.parse(embedded));
else follow();
