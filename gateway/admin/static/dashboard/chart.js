// A chart of one or two lines over time, drawn into SVG, with the same data as a table below it.

import { drawn, element, setText } from "./dom.js";
import { clock, short, when } from "./format.js";
import { nearest, roundTop, runs, thinned, timeTicks } from "./scales.js";

const HEIGHT = 130;
const EDGE = { top: 10, right: 12, bottom: 24, left: 64 };
const ROWS = 48;

// `series`: [{name, key, kind}], where kind is "cache" or "origin"; `format` turns a value into text. The axis ends at `top` if given,
// else at a round number above all values and `least`.
export class Chart {
  #figure;
  #series;
  #format;
  #top;
  #least;
  #svg = drawn("svg", { role: "img", height: HEIGHT, class: "plot" });
  #readout = element("span", { class: "readout" });
  #body = element("tbody");
  #data = { points: [], from: 0, to: 1, step: 60_000, marks: [] };
  #place = null;

  constructor(figure, { series, format, top = null, least = 1 }) {
    this.#figure = figure;
    this.#series = series;
    this.#format = format;
    this.#top = top;
    this.#least = least;
    const caption = figure.querySelector("figcaption");
    caption.append(...(series.length > 1 ? [this.#legend()] : []), this.#readout);
    const name = caption.firstChild.textContent;
    this.#svg.setAttribute("aria-label", name);
    figure.append(this.#svg, this.#table(name));
    this.#svg.addEventListener("pointermove", (event) => this.#point(event));
    this.#svg.addEventListener("pointerleave", () => this.#unpoint());
    new ResizeObserver(() => this.#draw()).observe(figure);
  }

  // Points have `time` in milliseconds and the keys of the series. Marks: [{time, kind, what}], drawn as lines across.
  show(points, from, to, step, marks = []) {
    this.#data = { points, from, to, step, marks: marks.filter(({ time }) => time >= from && time <= to) };
    this.#draw();
    this.#fillTable();
  }

  #legend() {
    const items = this.#series.map(({ name, kind }) => element("span", { class: `key ${kind}` }, name));
    return element("span", { class: "legend" }, ...items);
  }

  #table(name) {
    const heads = ["Time", ...this.#series.map((each) => each.name)];
    const row = element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)));
    const table = element("table", { class: "plain" }, element("caption", { class: "unseen" }, name), element("thead", {}, row), this.#body);
    const scroll = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${name} as a table` }, table);
    return element("details", {}, element("summary", {}, "As a table", element("span", { class: "unseen" }, `: ${name}`)), scroll);
  }

  #draw() {
    const width = Math.floor(this.#figure.clientWidth);
    if (width < 100) return; // not shown
    const { points, from, to, step } = this.#data;
    const most = Math.max(this.#least, ...points.flatMap((point) => this.#series.map(({ key }) => point[key] ?? 0)));
    const top = this.#top ?? roundTop(most);
    const x = (time) => EDGE.left + ((time - from) / (to - from)) * (width - EDGE.left - EDGE.right);
    const y = (value) => EDGE.top + (1 - Math.min(value, top) / top) * (HEIGHT - EDGE.top - EDGE.bottom);
    this.#place = { x, y, width };
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.#svg.setAttribute("width", width);
    this.#svg.setAttribute("aria-label", this.#summary());
    const lines = this.#series.flatMap((each) => this.#line(each, points, x, y, step * 2.5));
    this.#svg.replaceChildren(...this.#grid(top, x, y, width), ...lines, ...this.#marks(x));
  }

  #marks(x) {
    return this.#data.marks.map(({ time, kind }) => {
      const at = x(time).toFixed(1);
      const line = drawn("line", { x1: at, x2: at, y1: EDGE.top, y2: HEIGHT - EDGE.bottom });
      return drawn("g", { class: `event ${kind}` }, line, drawn("path", { d: `M${at},${EDGE.top + 6}l-4,-7h8z` }));
    });
  }

  #grid(top, x, y, width) {
    const { from, to } = this.#data;
    const across = [0, 0.5, 1].flatMap((part) => [
      drawn("line", { class: "rule", x1: EDGE.left, x2: width - EDGE.right, y1: y(top * part), y2: y(top * part) }),
      drawn("text", { class: "tick", x: EDGE.left - 8, y: y(top * part) + 4, "text-anchor": "end" }, short(this.#format(top * part))),
    ]);
    const times = timeTicks(from, to, Math.max(2, Math.floor(width / 90)));
    const along = times.filter((at) => x(at) < width - 24).map((at) =>
      drawn("text", { class: "tick", x: x(at), y: HEIGHT - 6, "text-anchor": "middle" }, clock(at)));
    return [...across, ...along];
  }

  #line({ key, kind }, points, x, y, widest) {
    return runs(points, (point) => point[key], widest).flatMap((run) => {
      const path = run.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join("L");
      const ends = [run[0][0], run.at(-1)[0]].map((time) => x(time).toFixed(1));
      if (run.length === 1) return [drawn("circle", { class: `dot ${kind}`, cx: ends[0], cy: y(run[0][1]), r: 2 })];
      const line = drawn("path", { class: `line ${kind}`, d: `M${path}` });
      if (kind !== "cache") return [line];
      return [drawn("path", { class: "area", d: `M${path}L${ends[1]},${y(0)}L${ends[0]},${y(0)}Z` }), line];
    });
  }

  #summary() {
    const said = this.#series.map(({ name, key }) => {
      const values = this.#data.points.map((point) => point[key]).filter((value) => typeof value === "number");
      if (values.length === 0) return `${name}: no data`;
      const [last, least, most] = [values.at(-1), Math.min(...values), Math.max(...values)].map(this.#format);
      return `${name}: last ${last}, lowest ${least}, highest ${most}`;
    });
    const { marks } = this.#data;
    const events = marks.length > 0 ? ` ${marks.length} marks: ${marks.slice(0, 5).map(({ what }) => what).join("; ")}.` : "";
    return `${said.join("; ")}. The table below has all values.${events}`;
  }

  #fillTable() {
    const rows = thinned(this.#data.points, ROWS).reverse().map((point) => {
      const values = this.#series.map(({ key }) => element("td", { class: "number" }, this.#format(point[key])));
      return element("tr", {}, element("th", { scope: "row" }, when(point.time)), ...values);
    });
    this.#body.replaceChildren(...rows);
  }

  #point(event) {
    const { points, from, to } = this.#data;
    if (this.#place === null || points.length === 0) return;
    const { x, y, width } = this.#place;
    const inside = event.clientX - this.#svg.getBoundingClientRect().left;
    const moment = from + ((inside - EDGE.left) / (width - EDGE.left - EDGE.right)) * (to - from);
    const found = nearest(points, moment);
    const marks = this.#series.filter(({ key }) => typeof found[key] === "number").map(({ key, kind }) =>
      drawn("circle", { class: `dot ${kind}`, cx: x(found.time), cy: y(found[key]), r: 3.5 }));
    const cursor = drawn("line", { class: "cursor", x1: x(found.time), x2: x(found.time), y1: EDGE.top, y2: HEIGHT - EDGE.bottom });
    this.#svg.querySelector(".pointed")?.remove();
    this.#svg.append(drawn("g", { class: "pointed" }, cursor, ...marks));
    const near = this.#data.marks.filter(({ time }) => Math.abs(x(time) - inside) <= 6).map(({ time, what }) => `${when(time)}: ${what}`);
    const words = [when(found.time), ...this.#series.map(({ key }) => this.#format(found[key]))];
    setText(this.#readout, (near.length > 0 ? near.slice(0, 2) : words).join("  ·  "));
  }

  #unpoint() {
    this.#svg.querySelector(".pointed")?.remove();
    setText(this.#readout, "");
  }
}
