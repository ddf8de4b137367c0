// What all parts of the page use: elements, numbers and times as text, tables.
"use strict";

const $ = (id) => document.getElementById(id);

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

/** Seconds, short ones with a decimal. */
const duration = (seconds) => (seconds < 10 ? seconds.toFixed(1) + " s" : seconds < 120 ? Math.round(seconds) + " s" : clock(seconds));

/** Puts rows into the table in `id`. All columns but the first and those in `words` hold numbers. A cell is text or an element. */
function table(id, head, rows, words = []) {
  const isNumber = (i) => i > 0 && !words.includes(i);
  const cell = (tag, more = {}) => (value, i) => element(tag, isNumber(i) ? { class: "number", ...more } : more, value instanceof Node ? value : String(value));
  const body = rows.map((row) => element("tr", {}, ...row.map(cell("td"))));
  $(id).replaceChildren(element("thead", {}, element("tr", {}, ...head.map(cell("th", { scope: "col" })))), element("tbody", {}, ...body));
}

/** Rows of a folded table that are shown at once. */
const FEW = 8;

/** Says what a folded table has. It is open from the start if it is short; later as the reader leaves it. */
function fold(id, summary, rows) {
  const details = $(id);
  details.querySelector("summary").textContent = summary;
  details.open = details.dataset.known ? details.open : rows <= FEW;
  details.dataset.known = "yes";
}

/** What can be scrolled can be reached by keyboard. */
function reachable(region) {
  const scrolls = region.scrollWidth > region.clientWidth || region.scrollHeight > region.clientHeight;
  if (scrolls) region.tabIndex = 0;
  else region.removeAttribute("tabindex");
}
