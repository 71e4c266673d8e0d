// When each chunk of a dataset was held: one row per chunk, with the same data as a table.

import { drawn, element, setText } from "./dom.js";
import { clock, when } from "./format.js";
import { timeTicks } from "./scales.js";

const ROW = 13;
const EDGE = { right: 12, bottom: 20, left: 28 };
const MOST_ROWS = 24;

export class Timeline {
  #svg = drawn("svg", { role: "img", class: "plot" });
  #body = element("tbody");
  #spans = [];
  #window = [0, 1];
  node;

  constructor(name) {
    const heads = ["Chunk", "From", "Until"].map((head) => element("th", { scope: "col" }, head));
    const table = element("table", { class: "plain" }, element("thead", {}, element("tr", {}, ...heads)), this.#body);
    const scroll = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Chunks of ${name} as a table` }, table);
    const summary = element("summary", {}, "As a table", element("span", { class: "unseen" }, `: chunks of ${name}`));
    this.#svg.setAttribute("aria-label", `Chunks of ${name}`);
    this.node = element("div", { class: "timeline" }, element("p", { class: "under" }, "Chunks that were held"), this.#svg, element("details", {}, summary, scroll));
    new ResizeObserver(() => this.#draw()).observe(this.node);
  }

  // `spans`: [{chunk, from, to}], `to` is null for a chunk that is held now; `from` and `to` of the window in milliseconds.
  show(spans, from, to) {
    this.#window = [from, to];
    this.#spans = spans
      .map((span) => ({ chunk: span.chunk, from: Date.parse(span.from), to: span.to === null ? to : Date.parse(span.to), open: span.to === null }))
      .filter((span) => span.to >= from && span.from <= to)
      .sort((one, other) => other.from - one.from);
    this.#draw();
    this.#fillTable();
  }

  #draw() {
    const width = Math.floor(this.node.clientWidth);
    if (width < 100) return; // not shown
    const chunks = [...new Set(this.#spans.map((span) => span.chunk))].slice(0, MOST_ROWS).sort((one, other) => one - other);
    const height = chunks.length * ROW + EDGE.bottom;
    const [from, to] = this.#window;
    const x = (time) => EDGE.left + ((Math.max(time, from) - from) / (to - from)) * (width - EDGE.left - EDGE.right);
    const rows = chunks.flatMap((chunk, row) => [
      drawn("text", { class: "tick", x: EDGE.left - 8, y: row * ROW + 10, "text-anchor": "end" }, String(chunk)),
      drawn("line", { class: "rule", x1: EDGE.left, x2: width - EDGE.right, y1: row * ROW + 6, y2: row * ROW + 6 }),
    ]);
    const bars = this.#spans.filter((span) => chunks.includes(span.chunk)).map((span) =>
      drawn("rect", {
        class: span.open ? "bar open" : "bar", x: x(span.from), width: Math.max(2, x(span.to) - x(span.from)),
        y: chunks.indexOf(span.chunk) * ROW + 2, height: ROW - 4, rx: 2,
      }));
    const times = timeTicks(from, to, Math.max(2, Math.floor(width / 90))).filter((at) => x(at) < width - 24).map((at) =>
      drawn("text", { class: "tick", x: x(at), y: height - 5, "text-anchor": "middle" }, clock(at)));
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#svg.setAttribute("width", width);
    this.#svg.setAttribute("height", height);
    this.#svg.setAttribute("aria-label", this.#summary());
    this.#svg.replaceChildren(...rows, ...bars, ...times);
  }

  #summary() {
    const now = this.#spans.filter((span) => span.open).map((span) => span.chunk);
    const held = now.length > 0 ? `held now: ${now.join(", ")}` : "none is held now";
    return `Chunks that were held: ${this.#spans.length} spans of time; ${held}. The table below lists them.`;
  }

  #fillTable() {
    const rows = this.#spans.slice(0, 60).map((span) => {
      const until = element("td", {});
      setText(until, span.open ? "now" : when(span.to));
      return element("tr", {}, element("th", { scope: "row" }, String(span.chunk)), element("td", {}, when(span.from)), until);
    });
    this.#body.replaceChildren(...rows);
  }
}
