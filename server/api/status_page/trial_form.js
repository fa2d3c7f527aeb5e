// The box that tries an endpoint of a model.

import { events, post, relative, storedKey } from "./api.js";
import { byId, make, tell } from "./dom.js";
import { duration } from "./numbers.js";
import { TRIALS } from "./trials.js";

export class TrialForm {
  #models = [];
  #stopper = null;

  /** `onError` is called with what made a trial fail. */
  constructor(onError) {
    this.onError = onError;
    byId("try-model").addEventListener("change", () => this.#showEndpoints());
    byId("try-endpoint").addEventListener("change", () => this.#showFields());
    byId("try-fields").addEventListener("input", () => this.#showCommand());
    byId("try-stop").addEventListener("click", () => this.#stopper?.abort());
    byId("try").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
  }

  /** The models of /status; what is filled in stays while they are the same. */
  show(models) {
    const names = models.map((model) => model.name);
    if (names.join("\n") === this.#models.map((model) => model.name).join("\n")) return;
    this.#models = models;
    byId("try-model").replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    this.#showEndpoints();
  }

  get #path() {
    return byId("try-endpoint").value;
  }

  #showEndpoints() {
    const model = this.#models.find((one) => one.name === byId("try-model").value);
    const paths = Object.keys(TRIALS).filter((path) => model?.endpoints.includes(path));
    byId("try-endpoint").replaceChildren(...paths.map((path) => make("option", { value: path }, path)));
    byId("try-send").disabled = paths.length === 0;
    this.#showFields();
  }

  #showFields() {
    const fields = Object.entries(TRIALS[this.#path]?.fields ?? {});
    byId("try-fields").replaceChildren(
      ...fields.map(([name, field]) => {
        const id = `try-field-${name}`;
        return make("div", {}, make("label", { for: id }, field.label), inputOf(field, id, name));
      }),
    );
    byId("try-answer").hidden = true;
    tell(byId("try-note"), "");
    this.#showCommand();
  }

  #values() {
    const inputs = byId("try-fields").querySelectorAll("[name]");
    return Object.fromEntries([...inputs].map((one) => [one.name, one.type === "number" ? Number(one.value) : one.value]));
  }

  #body() {
    return { model: byId("try-model").value, ...TRIALS[this.#path].body(this.#values()) };
  }

  #showCommand() {
    if (!TRIALS[this.#path]) return;
    const url = new URL(relative(this.#path), document.baseURI);
    const body = JSON.stringify(this.#body()).replaceAll("'", "'\\''");
    const key = storedKey() === null ? "" : ' -H "Authorization: Bearer $KEY"';
    tell(byId("try-command"), `curl -N ${url}${key} -d '${body}'`);
  }

  async #send() {
    const answer = byId("try-answer");
    const started = performance.now();
    this.#begin();
    try {
      const trial = TRIALS[this.#path];
      const values = this.#values();
      const response = await post(this.#path, this.#body(), this.#stopper.signal);
      const first = trial.piece
        ? await showPieces(answer, trial, response, started)
        : answer.replaceChildren(trial.show(await response.json(), values));
      const whole = duration((performance.now() - started) / 1000);
      tell(byId("try-note"), first ? `First text after ${duration(first / 1000)}, whole after ${whole}.` : `Answered after ${whole}.`);
    } catch (error) {
      this.#failed(error);
    } finally {
      this.#stopper = null;
      byId("try-send").disabled = false;
      byId("try-stop").disabled = true;
    }
  }

  #begin() {
    this.#stopper = new AbortController();
    byId("try-send").disabled = true;
    byId("try-stop").disabled = false;
    byId("try-answer").replaceChildren();
    byId("try-answer").hidden = false;
    tell(byId("try-note"), "Waiting for the answer …");
  }

  #failed(error) {
    if (error.name === "AbortError") {
      tell(byId("try-note"), "Stopped.");
      return;
    }
    tell(byId("try-note"), "No answer.");
    byId("try-answer").append(make("p", { class: "error" }, error.message));
    this.onError(error);
  }
}

/** Show a streamed text as it comes; returns when its first piece came, in ms after `started`. */
async function showPieces(answer, trial, response, started) {
  let first = null;
  const text = make("p", { class: "text" });
  answer.append(text);
  for await (const event of events(response)) {
    const piece = trial.piece(event);
    if (piece !== "") first ??= performance.now() - started;
    text.append(piece);
  }
  return first;
}

function inputOf(field, id, name) {
  if (field.number) {
    return make("input", { id, name, type: "number", min: 1, value: field.value, required: "" });
  }
  if (field.rows === 1) return make("input", { id, name, type: "text", value: field.value, required: "" });
  return make("textarea", { id, name, rows: field.rows, required: "" }, field.value);
}
