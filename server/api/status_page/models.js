// One card for each model: its state, its rows, its KV cache, its stages. Copies of an engine are added up.

import { byId, make, tell } from "./dom.js";
import { NONE, count, duration, percent } from "./numbers.js";
import { Tile } from "./tiles.js";

const PARTS = { busy: "busy", waiting: "waiting", transfer: "sending", idle: "idle", free: "no requests" };
const TASKS = { generate: "generates", embed: "embeds", embed_sparse: "embeds, sparse", classify: "scores", rerank: "reranks" };

export class Models {
  #cards = [];

  show(history) {
    const { models } = history.now;
    if (models.map((model) => model.name).join("\n") !== this.#cards.map((card) => card.name).join("\n")) {
      this.#cards = models.map((model, number) => new Card(model, number));
      byId("models").replaceChildren(...this.#cards.map((card) => card.element));
    }
    for (const card of this.#cards) card.show(history);
  }
}

class Card {
  #state = make("span", { class: "pill" });
  #running = new Tile("Running", "rows");
  #tokens;
  #firstToken = new Tile("First token, p50", "");
  #facts = make("dl", { class: "facts" });
  #stages = make("div", { class: "stages" });

  constructor(model, number) {
    this.name = model.name;
    this.number = number;
    this.generates = model.task === "generate";
    this.#tokens = new Tile(this.generates ? "Generated" : "Prompts", "tokens/s");
    const tiles = [this.#running, this.#tokens, ...(this.generates ? [this.#firstToken] : [])];
    const aliases = model.aliases.length > 0 ? `also ${model.aliases.join(", ")}; ` : "";
    this.element = make(
      "article", { class: "card", "aria-label": `Model ${model.name}` },
      make("div", { class: "head" }, make("h3", {}, model.name), this.#state),
      make("p", { class: "note" }, `${aliases}${TASKS[model.task] ?? model.task}, up to ${count(model.max_model_len)} tokens`),
      make("p", { class: "paths" }, ...model.endpoints.map((path) => make("code", {}, path))),
      make("div", { class: "tiles" }, ...tiles.map((tile) => tile.element)),
      this.#facts,
      this.#stages,
    );
  }

  show(history) {
    const model = history.now.models[this.number];
    tell(this.#state, model.state);
    this.#state.dataset.state = model.state;
    const values = together(model.engines);
    const running = values.running_rows ?? null;
    this.#running.show(running, count(running), `${count(values.waiting_rows ?? null)} waiting`);
    this.#showTokens(history, model);
    this.#showFacts(model, values);
    this.#showStages(history, model);
  }

  #showTokens(history, model) {
    const field = this.generates ? "generated_tokens" : "prompt_tokens";
    const rate = history.rate((status) => status.models[this.number][field]);
    this.#tokens.show(rate, count(rate), `${count(model[field])} since the start`);
    if (!this.generates) return;
    const times = (status) => status.models[this.number].first_token;
    const between = (status) => status.models[this.number].inter_token;
    const [p50, p95] = history.quantiles(times, [0.5, 0.95]);
    const [next] = history.quantiles(between, [0.5]);
    const [latest] = history.newQuantiles(times, [0.5]);
    this.#firstToken.show(latest, duration(p50), `p95 ${duration(p95)}, then ${duration(next)} a token`);
  }

  #showFacts(model, values) {
    const facts = [];
    if (values.kv_blocks > 0) {
      const used = values.kv_blocks_used / values.kv_blocks;
      facts.push(["KV cache in use", meter(used, "KV cache in use"), `${percent(used)} of ${count(values.kv_blocks)} blocks`]);
    }
    if (values.cached_tokens > 0) {
      const share = percent(values.cached_tokens / values.prefix_queried_tokens);
      facts.push(["From the prefix cache", null, `${share} of prompt tokens`]);
    }
    if (values.preemptions > 0) facts.push(["Preemptions", null, count(values.preemptions)]);
    if (values.expected_wait_seconds > 0) facts.push(["Expected wait", null, duration(values.expected_wait_seconds)]);
    if (values.stalled_seconds > 5) facts.push(["Oldest step in flight", null, duration(values.stalled_seconds)]);
    if (values.restarts > 0) facts.push(["Restarts", null, count(values.restarts)]);
    for (const [copy, { loss }] of model.engines.entries()) {
      if (loss) facts.push([`Last loss${ofCopy(model, copy)}`, null, lossText(loss)]);
    }
    this.#facts.replaceChildren(
      ...facts.map(([name, bar, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, bar, text))),
    );
  }

  #showStages(history, model) {
    const rows = model.engines.map(({ state, stages }, copy) => {
      const lost = model.engines.length > 1 && state !== "ready" ? ` ${state}` : "";
      const name = (stage) => (stages.length > 1 ? `Stage ${stage}` : "Stage") + ofCopy(model, copy) + lost;
      return stages.map((_, stage) => {
        const shares = history.shares(this.number, copy, stage);
        return make("div", { class: "stage" }, make("span", { class: "name" }, name(stage)), bar(shares), legend(shares));
      });
    });
    this.#stages.replaceChildren(...rows.flat());
  }
}

const ofCopy = (model, copy) => (model.engines.length > 1 ? ` of copy ${copy}` : "");

/** The values of all engines added up. A request waits for the one that is the first to begin it. */
function together(engines) {
  const all = {};
  for (const { values } of engines) {
    for (const [name, value] of Object.entries(values)) all[name] = (all[name] ?? 0) + value;
  }
  const [waits, ages] = ["expected_wait_seconds", "stalled_seconds"].map((name) => engines.map(({ values }) => values[name] ?? 0));
  return { ...all, expected_wait_seconds: Math.min(...waits), stalled_seconds: Math.max(...ages) };
}

function lossText({ reason, seconds_ago, outage_seconds }) {
  const now = outage_seconds === null ? "its stages are being started" : `ready again after ${duration(outage_seconds)}`;
  return `${reason}, ${duration(seconds_ago)} ago; ${now}`;
}

function meter(share, name) {
  return make("meter", { min: 0, max: 1, high: 0.9, value: share, "aria-label": name });
}

/** The parts side by side. Widths are set by script: the page's policy knows no style attributes. */
function bar(shares) {
  const strip = make("span", { class: "strip", "aria-hidden": "true" });
  for (const part of shares ? Object.keys(PARTS) : []) {
    const piece = make("span", { class: part });
    piece.style.flexGrow = shares[part].toFixed(4);
    strip.append(piece);
  }
  return strip;
}

function legend(shares) {
  const shown = shares ? Object.entries(PARTS).filter(([part]) => shares[part] >= 0.005) : [];
  const parts = shown.map(([part, name]) => make("span", {}, make("i", { class: part }), `${name} ${percent(shares[part])}`));
  return make("span", { class: "legend" }, ...(parts.length > 0 ? parts : [NONE]));
}
