// The daemon's load in a few numbers, each with a line.

import { byId, make, tell } from "./dom.js";
import { answered, refused, sumOfTimes } from "./history.js";
import { NONE, count, duration } from "./numbers.js";
import { Sparkline } from "./sparkline.js";

const total = (field) => (status) => status.models.reduce((sum, model) => sum + model[field], 0);
const firstTokens = (status) =>
  sumOfTimes(status.models.filter((model) => model.task === "generate").map((model) => model.first_token));

/** A number with its name, a note and a sparkline. */
export class Tile {
  #number = make("span", { class: "number" }, NONE);
  #unit;
  #note = make("span", { class: "note" });

  constructor(name, unit) {
    this.#unit = make("span", { class: "unit" }, unit);
    this.sparkline = new Sparkline(name);
    this.element = make(
      "div", { class: "tile" },
      make("span", { class: "name" }, name),
      make("span", { class: "value" }, this.#number, " ", this.#unit),
      this.#note,
      this.sparkline.element,
    );
  }

  show(value, text, note = "") {
    tell(this.#number, text);
    tell(this.#note, note);
    this.sparkline.add(value, `${text} ${this.#unit.textContent}`.trim());
  }
}

export class Tiles {
  #tiles = {
    requests: new Tile("Requests", "a second"),
    generated: new Tile("Generated", "tokens/s"),
    prompt: new Tile("Prompts", "tokens/s"),
    firstToken: new Tile("First token, p50", ""),
    inFlight: new Tile("In flight", "requests"),
    refusals: new Tile("Refused", "a second"),
  };

  constructor() {
    byId("tiles").append(...Object.values(this.#tiles).map((tile) => tile.element));
  }

  show(history) {
    const { requests, generated, prompt, firstToken, inFlight, refusals } = this.#tiles;
    const { now } = history;
    const asked = history.rate(answered);
    requests.show(asked, count(asked), `${count(answered(now))} since the start`);
    for (const [tile, field] of [[generated, "generated_tokens"], [prompt, "prompt_tokens"]]) {
      const rate = history.rate(total(field));
      tile.show(rate, count(rate), `${count(total(field)(now))} since the start`);
    }
    this.#showFirstToken(firstToken, history);
    const { rows, tokens } = now.in_flight;
    inFlight.show(now.in_flight.requests, count(now.in_flight.requests), `${count(rows)} rows, ${count(tokens)} tokens`);
    const refusing = history.rate(refused);
    refusals.show(refusing, count(refusing), `${count(refused(now))} since the start`);
  }

  #showFirstToken(tile, history) {
    if (!history.now.models.some((model) => model.task === "generate")) return;
    const [p50, p95] = history.quantiles(firstTokens, [0.5, 0.95]);
    const [latest] = history.newQuantiles(firstTokens, [0.5]);
    tile.show(latest, duration(p50), `p95 ${duration(p95)}, last minute`);
  }
}
