// The box that tries an endpoint of a model.

import { events, post, relative, storedKey } from "./api.js";
import { Conversation } from "./conversation.js";
import { byId, make, tell } from "./dom.js";
import { duration } from "./numbers.js";
import { TRIALS } from "./trials.js";

export class TrialForm {
  #models = [];
  #stopper = null;
  #conversation = new Conversation();

  /** `onError` is called with what made a trial fail. */
  constructor(onError) {
    this.onError = onError;
    byId("try-model").addEventListener("change", () => this.#showEndpoints());
    byId("try-endpoint").addEventListener("change", () => this.#showFields());
    byId("try-fields").addEventListener("input", () => this.#showCommand());
    byId("try-stop").addEventListener("click", () => this.#stopper?.abort());
    byId("try-anew").addEventListener("click", () => this.#beginAnew());
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
    this.#beginAnew();
  }

  /** Forget the conversation and the answer. */
  #beginAnew() {
    this.#conversation = new Conversation();
    byId("try-anew").hidden = true;
    byId("try-answer").hidden = true;
    tell(byId("try-note"), "");
    this.#showCommand();
  }

  #values() {
    const inputs = byId("try-fields").querySelectorAll("[name]");
    return Object.fromEntries([...inputs].map((one) => [one.name, valueOf(one)]));
  }

  #body() {
    return { model: byId("try-model").value, ...TRIALS[this.#path].body(this.#values(), this.#conversation.turns) };
  }

  #showCommand() {
    if (!TRIALS[this.#path]) return;
    const url = new URL(relative(this.#path), document.baseURI);
    const body = JSON.stringify(this.#body()).replaceAll("'", "'\\''");
    const key = storedKey() === null ? "" : ' -H "Authorization: Bearer $KEY"';
    tell(byId("try-command"), `curl -N ${url}${key} -d '${body}'`);
  }

  async #send() {
    const started = performance.now();
    const trial = TRIALS[this.#path];
    const values = this.#values();
    const body = this.#body();
    const question = values[trial.turn];
    const text = this.#begin(question);
    try {
      const response = await post(this.#path, body, this.#stopper.signal);
      const first = trial.piece
        ? await showPieces(text, trial, response, started)
        : byId("try-answer").replaceChildren(trial.show(await response.json(), values));
      const whole = duration((performance.now() - started) / 1000);
      tell(byId("try-note"), first ? `First text after ${duration(first / 1000)}, whole after ${whole}.` : `Answered after ${whole}.`);
    } catch (error) {
      if (error.name !== "AbortError") {
        this.#failed(error);
        return;
      }
      tell(byId("try-note"), "Stopped.");
    } finally {
      setBusy(false);
    }
    if (question !== undefined && text.textContent !== "") this.#goOn(question, text.textContent);
  }

  /** Make room for an answer, to a conversation's `question` if there is one; returns where its
      text belongs. */
  #begin(question) {
    const region = byId("try-answer");
    this.#stopper = new AbortController();
    setBusy(true);
    this.#showCommand();
    region.hidden = false;
    tell(byId("try-note"), "Waiting for the answer …");
    if (question !== undefined) return this.#conversation.ask(question, region);
    const text = make("p", { class: "text" });
    region.replaceChildren(text);
    return text;
  }

  #goOn(question, answer) {
    this.#conversation.add(question, answer);
    byId("try-anew").hidden = false;
    const field = byId(`try-field-${TRIALS[this.#path].turn}`);
    if (field.value === question) field.value = ""; // else it is another one by now
  }

  #failed(error) {
    tell(byId("try-note"), "No answer.");
    byId("try-answer").append(make("p", { class: "error" }, error.message));
    this.onError(error);
  }
}

/** While an answer is on its way, it can be stopped, and nothing else be asked. */
function setBusy(busy) {
  for (const id of ["try-send", "try-anew", "try-model", "try-endpoint"]) byId(id).disabled = busy;
  byId("try-stop").disabled = !busy;
}

/** Show a streamed text as it comes; returns when its first piece came, in ms after `started`. */
async function showPieces(text, trial, response, started) {
  const region = byId("try-answer");
  let first = null;
  for await (const event of events(response)) {
    const piece = trial.piece(event);
    if (piece !== "") first ??= performance.now() - started;
    // Who has scrolled up to read is left there.
    const atEnd = region.scrollHeight - region.scrollTop - region.clientHeight < 8;
    text.append(piece);
    if (atEnd) region.scrollTop = region.scrollHeight;
  }
  return first;
}

/** What was typed into an input; undefined for a number that was left out. */
function valueOf({ type, value }) {
  if (type !== "number") return value;
  return value === "" ? undefined : Number(value);
}

function inputOf({ value, rows, attributes }, id, name) {
  if (rows) return make("textarea", { id, name, rows, ...attributes }, value);
  return make("input", { id, name, value, ...attributes });
}
