// The tables of a run: evaluations, what its tuners did, its rows, its processes.
"use strict";

/** The newest evaluations while the model trained. */
const EVALUATIONS = 50;

function evaluations(run) {
  const { points = [], best, metric, stopped_early } = run.evaluations ?? {};
  if (points.length === 0) return;
  $("evaluation").hidden = false;
  const digits = (value) => value?.toFixed(5) ?? "undefined";
  // Which metrics the model has. Some points may lack the value of one.
  const has = (name) => points.some((point) => (point[name] ?? null) !== null);
  const recall = points.find((point) => point.recall)?.recall;
  const metrics = [["AUC", (point) => point.auc]];
  if (recall) metrics.push([`recall@${recall.k}`, (point) => point.recall?.recall]);
  if (has("mrr")) metrics.push(["MRR", (point) => point.mrr]);
  // A NaN is null.
  if (points.some((point) => point.logloss !== undefined)) metrics.push(["logloss", (point) => point.logloss]);
  if (has("gauc")) metrics.push(["GAUC", (point) => point.gauc]);
  const rows = points.map((point, i) => {
    const values = [commas(point.rows), point.epochs, ...metrics.map(([, value]) => digits(value(point)))];
    const notes = (i === best ? ` (best ${metric})` : "") + (point.reduced_lr ? ", learning rates reduced" : "");
    return [`${i + 1}${notes}`, ...values];
  });
  const head = ["evaluation", "rows", "whole epochs", ...metrics.map(([name]) => name)];
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
    const says = bins.map((bin) => `predicted ${bin.predicted.toFixed(3)}, observed ${bin.observed.toFixed(3)}`).join("; ");
    const { figure } = chart($("calibration"), "calibration", "share of rows with label 1, by predicted score", data, [observed, line("as predicted", "quiet")], says);
    legend(figure, [["busy", "observed"], ["quiet", "as predicted"]]);
  }
}

/** The quality of each of several labels. */
function labels(of) {
  $("labels").parentElement.hidden = of.length === 0;
  if (of.length === 0) return;
  const digits = (value, n) => value?.toFixed(n) ?? "undefined";
  const share = (value) => (value === null ? "undefined" : `${digits(100 * value, 2)}%`);
  const row = (each) => [each.label, share(each.positive_rate), digits(each.auc, 5), digits(each.logloss, 5), digits(each.normalized_entropy, 4), digits(each.copc, 4)];
  table("labels", ["label", "positive", "AUC", "logloss", "normalized entropy", "COPC"], of.map(row));
}

/** What a change of a knob counts, if it is not replicas. */
const KNOBS = { decode_threads: "decode threads", read_ahead: "of read-ahead", threads: "threads" };

/** The changes of replicas, threads and read-ahead, the newest first. */
function adjustments(of) {
  $("tuning").hidden = of.length === 0;
  if (of.length === 0) return;
  const several = of.some((each) => each.process);
  const rows = [...of].reverse().map((each) => {
    const knob = each.stages[0]?.knob;
    const number = (n) => (knob === "read_ahead" ? bytes(n) : n);
    const what = each.stages.map(({ stage, from, to }) => `${stage} ${number(from)} → ${number(to)}`).join(", ") + " " + (KNOBS[knob] ?? "replicas");
    const after = each.rows_per_second_after == null ? "not measured yet" : short(each.rows_per_second_after) + (each.rolled_back ? ", rolled back" : "");
    return [clock(each.at), ...(several ? [each.process ?? ""] : []), what, each.why, short(each.rows_per_second), after];
  });
  const words = several ? [1, 2, 3] : [1, 2];
  table("adjustment-table", ["after", ...(several ? ["process"] : []), "change", "why", "rows/s before", "rows/s after"], rows, words);
  const undone = of.filter((each) => each.rolled_back).length;
  fold("adjustments", `${of.length === 1 ? "1 change" : of.length + " changes"} of the tuner, ${undone} rolled back`, of.length);
}

function ledger({ read, delivered, rejected, unwritten }) {
  const reasons = Object.entries(rejected ?? {}).map(([reason, rows]) => [`rejected: ${reason}`, commas(rows)]);
  const lost = unwritten ? [["bad rows that could not be written to their file", commas(unwritten)]] : [];
  table("ledger", ["", "rows"], [["read", commas(read)], ["delivered", commas(delivered)], ...reasons, ...lost]);
}

/** What each slot had, the one with the most keys first. */
function slots(of) {
  $("slots").hidden = of.length === 0;
  if (of.length === 0) return;
  const sorted = [...of].sort((a, b) => b.keys - a.keys);
  const count = (n, estimated) => (estimated ? "about " : "") + commas(n);
  const rows = sorted.map((slot) => [slot.name, slot.table, commas(slot.values), slot.mean_values.toFixed(2), percent(slot.empty_share), count(slot.keys, slot.estimated), count(slot.rows, slot.estimated)]);
  fold("slot-list", `${of.length} slots; most keys: ${sorted[0].name}, ${count(sorted[0].keys, sorted[0].estimated)}`, of.length);
  table("slot-table", ["slot", "table", "values", "values of a row", "empty", "keys", "of these with a row"], rows, [1]);
}

/** `64 readers, 2 ps, 1 trainer` */
function roles(of) {
  const counts = new Map();
  for (const { process } of of) {
    const role = process.replace(/ \d+$/, "");
    counts.set(role, (counts.get(role) ?? 0) + 1);
  }
  return [...counts].map(([role, count]) => `${count} ${role}${count > 1 && role !== "ps" ? "s" : ""}`).join(", ");
}

function processes(of) {
  $("processes").hidden = of.length === 0;
  if (of.length === 0) return;
  const parts = (each) => [...each.stages, ...each.services];
  const cpu = of.reduce((sum, each) => sum + (each.machine?.cpu ?? 0), 0);
  const memory = (each) => (each.machine?.peak_bytes ? bytes(each.machine.peak_bytes) : "");
  const all = of.flatMap((each) => parts(each).map((part) => ({ ...part, name: `${each.process}, ${part.name}` })));
  fold("process-list", `${roles(of)}: ${short(cpu)} CPU seconds; busiest: ${busiest(all)}`, of.length);
  const rows = of.map((each) => [each.process, each.machine?.cpu?.toFixed(1) ?? "", memory(each), busiest(parts(each))]);
  table("process-table", ["process", "CPU seconds", "memory, at most", "busiest"], rows, [3]);
}
