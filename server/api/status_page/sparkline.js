// A line of the last values, without axes.

import { draw } from "./dom.js";

const POINTS = 60;
const WIDTH = 120;
const HEIGHT = 32;

export class Sparkline {
  #values = [];
  #line = draw("path", { class: "line" });
  #area = draw("path", { class: "area" });

  /** `name` says what it shows, to those who cannot see it. */
  constructor(name) {
    this.name = name;
    const box = `0 0 ${WIDTH} ${HEIGHT}`;
    const attributes = { class: "sparkline", viewBox: box, preserveAspectRatio: "none", role: "img" };
    this.element = draw("svg", attributes, this.#area, this.#line);
    this.#label("no values yet");
  }

  /** Add a value, which `text` tells; null is a gap. */
  add(value, text) {
    this.#values.push(value);
    if (this.#values.length > POINTS) this.#values.shift();
    this.#label(`now ${text}`);
    const top = Math.max(...this.#values.filter((one) => one !== null), 1e-9);
    const runs = this.#runs(top);
    const line = runs.map((run) => `M${run.map(([x, y]) => `${x} ${y}`).join("L")}`).join("");
    this.#line.setAttribute("d", line);
    this.#area.setAttribute("d", runs.map(areaOf).join(""));
  }

  /** The points of each run of values without a gap; the newest is at the right edge. */
  #runs(top) {
    const step = WIDTH / (POINTS - 1);
    const first = WIDTH - step * (this.#values.length - 1);
    const runs = [[]];
    for (const [i, value] of this.#values.entries()) {
      if (value === null) runs.push([]);
      else runs.at(-1).push([(first + i * step).toFixed(1), (HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)]);
    }
    return runs.filter((run) => run.length > 0).map((run) => (run.length > 1 ? run : dot(run[0])));
  }

  #label(text) {
    this.element.setAttribute("aria-label", `${this.name}, the last two minutes: ${text}`);
  }
}

const dot = ([x, y]) => [[x - 1, y], [x, y]];

function areaOf(run) {
  const [left, right] = [run[0][0], run.at(-1)[0]];
  return `M${left} ${HEIGHT}L${run.map(([x, y]) => `${x} ${y}`).join("L")}L${right} ${HEIGHT}Z`;
}
