// The graph of the run: its stages, the links between them, and the shards of its tables.
"use strict";

const PARTS = ["busy", "waiting", "starved", "blocked"];

/** Seconds that the bars of a run that goes on look back. */
const RECENT = 10;

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

const inWords = (all) => PARTS.map((part, i) => `${part} ${percent(all[i])}`).join(", ");

function bar(all) {
  const text = inWords(all);
  const made = element("div", { class: "bar", role: "img", "aria-label": text, title: text });
  PARTS.forEach((part, i) => made.append(element("span", { class: part, style: `width:${100 * all[i]}%` })));
  return made;
}

function graph(run) {
  // The sentence says "no clear limit" then.
  const limit = run.analysis?.certainty === "unclear" ? undefined : run.analysis?.limit?.name;
  const now = run.live && !run.live.over;
  const items = run.stages.map((stage, i) => {
    const isLimit = stage.name === limit;
    const box = element("div", { class: "stage" + (isLimit ? " limit" : "") });
    const replicas = stage.replicas > 1 ? ` × ${stage.replicas}` : "";
    const rows = `${short(stage.rows_in || stage.rows_out)} rows` + (isLimit ? ", the limit" : "");
    box.append(element("b", {}, stage.name + replicas), bar(now ? sharesNow(stage, run.history) : shares(stage)), element("small", {}, rows));
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
  shards(run.services ?? []);
}

/** A stage or shard that was busiest of all: `embedding 3 42% busy`. */
function busiest(of) {
  const most = [...of].sort((a, b) => shares(b)[0] - shares(a)[0])[0];
  return most ? `${most.name} ${percent(shares(most)[0])} busy` : "";
}

function shards(services) {
  $("shards").hidden = services.length === 0;
  if (services.length === 0) return;
  const calls = services.reduce((sum, service) => sum + service.items_in, 0);
  fold("shards", `${services.length === 1 ? "1 shard" : services.length + " shards"}: ${short(calls)} calls; busiest: ${busiest(services)}`, services.length);
  const held = services.some((service) => service.rows_held != null);
  const rows = services.map((service) => [
    service.name,
    short(service.items_in),
    ...(held ? [service.rows_held == null ? "" : commas(service.rows_held)] : []),
    bar(shares(service)),
  ]);
  table("shard-table", ["shard", "calls", ...(held ? ["rows held"] : []), "time"], rows, [held ? 3 : 2]);
}
