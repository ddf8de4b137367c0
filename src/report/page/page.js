// Draws the page of a run from its report: the JSON in #run, or while the run goes on, that of run.json every second.
"use strict";

/** Bytes per second from the store: now, or over the whole run if it is over. */
function storeRate(run) {
  const { seconds = [], store_bytes = [] } = run.history ?? {};
  const last = seconds.length - 1;
  if (!(store_bytes[last] > 0)) return undefined;
  const back = run.live && !run.live.over ? RECENT : Infinity;
  const since = Math.max(0, seconds.findLastIndex((time) => time <= seconds[last] - back));
  const time = seconds[last] - seconds[since];
  return time > 0 && short((store_bytes[last] - store_bytes[since]) / time).replace(/[kMG]?$/, " $&B");
}

function figures(run) {
  const progress = run.progress ?? {};
  const rows = run.all_trainers?.rows ?? progress.rows;
  const seconds = run.wall;
  // A resumed run has not trained on all of its rows in this time.
  const speed = (rows - (run.trained_before?.rows ?? 0)) / seconds;
  const list = [
    ["rows", rows && commas(rows)],
    ["rows per second", rows && seconds && short(speed)],
    ["time", clock(seconds)],
    ["done", run.position?.share != null && percent(run.position.share)],
    ["epoch", run.position?.epochs > 1 && `${run.position.epoch} of ${run.position.epochs}`],
    ["time left", run.live && !run.live.over && run.seconds_left > 0 && clock(run.seconds_left)],
    ["logloss", progress.rows && progress.logloss?.toFixed(5)],
    ["AUC", progress.auc?.toFixed(5)],
    ["CPU seconds", run.cpu_seconds?.toFixed(1)],
    ["memory, at most", run.peak_bytes && bytes(run.peak_bytes)],
    ["staleness", run.staleness_now != null && String(run.staleness_now)],
    ["staleness, at most", run.staleness_observed != null && String(run.staleness_observed)],
    ["from the store, per second", storeRate(run)],
    ["cores", run.machine?.cores],
    ["rejected rows", commas(Object.values(run.ledger.rejected ?? {}).reduce((sum, rows) => sum + rows, 0))],
    ["newest checkpoint", run.checkpoint && `${run.checkpoint.number}, ${duration(run.checkpoint.age)} ago, took ${duration(run.checkpoint.seconds)}`],
    ["drained to checkpoint", run.drained_to && `${run.drained_to.checkpoint}, which has ${commas(run.drained_to.rows)} rows`],
    ["windows done", run.run && `${commas(run.run.windows_done)} of ${commas(run.run.windows_total)}`],
    ["leases given out again", run.run && String(run.run.lost_leases)],
    ["silent", run.run?.silent?.join(", ")],
  ];
  const shown = list.filter(([, value]) => value);
  $("figures").replaceChildren(
    ...shown.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))),
  );
}

const regions = document.querySelectorAll(".scroll");
const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => reachable(target)));
regions.forEach((region) => sizes.observe(region));

function draw(run) {
  document.title = $("title").textContent = `Forebay: ${run.job ?? run.name}`;
  const { state, message } = run.verdict;
  $("verdict").textContent = [state, message, run.sentence].filter(Boolean).join(". ");
  figures(run);
  graph(run);
  overTime(run);
  evaluation(run);
  adjustments(run.adjustments ?? []);
  ledger(run.ledger);
  slots(run.slots ?? []);
  processes(run.processes ?? []);
  regions.forEach(reachable);
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
