// The page's life: ask for the key if the daemon has one, then show /status every two seconds.

import { WrongKeyError, forgetKey, getJSON, relative, storeKey, storedKey } from "./api.js";
import { byId, make, tell } from "./dom.js";
import { History } from "./history.js";
import { Models } from "./models.js";
import { showAnswers, showRefusals } from "./tables.js";
import { Tiles } from "./tiles.js";
import { TrialForm } from "./trial_form.js";

const POLL_MS = 2000;
const NOTICE = "penstock-notice";
const WRONG = "This key is not accepted. Check it and try again.";

class Page {
  #history = new History();
  #tiles = new Tiles();
  #models = new Models();
  #trial = new TrialForm((error) => {
    if (error instanceof WrongKeyError) closePage(WRONG);
  });
  #timer = null;
  #asking = false;

  constructor() {
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      storeKey(byId("key").value.trim());
      byId("key").value = "";
      this.#poll();
    });
    byId("forget").addEventListener("click", () => closePage(""));
    // A page that nobody sees asks nothing.
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.#timer !== null) this.#poll();
    });
  }

  async open() {
    let home;
    try {
      home = await getJSON("./");
    } catch {
      this.#showState("unreachable", "no answer");
      setTimeout(() => this.open(), POLL_MS);
      return;
    }
    showLinks(home);
    if (home.needs_key && storedKey() === null) this.#askForKey();
    else this.#poll();
  }

  async #poll() {
    clearTimeout(this.#timer);
    if (this.#asking) return;
    this.#asking = true;
    try {
      this.#show(await getJSON("/status"));
    } catch (error) {
      if (error instanceof WrongKeyError) {
        closePage(WRONG);
        return;
      }
      this.#showState("unreachable", `no answer since ${new Date().toLocaleTimeString()}`);
    } finally {
      this.#asking = false;
    }
    this.#timer = setTimeout(() => (document.hidden ? null : this.#poll()), POLL_MS);
  }

  #show(status) {
    this.#history.add(status);
    this.#showState(stateOf(status));
    tell(byId("version"), status.version);
    byId("key-form").hidden = true;
    byId("board").hidden = false;
    byId("forget").hidden = storedKey() === null;
    this.#tiles.show(this.#history);
    this.#models.show(this.#history);
    showAnswers(this.#history);
    showRefusals(this.#history);
    this.#trial.show(status.models);
  }

  #askForKey() {
    tell(byId("key-error"), sessionStorage.getItem(NOTICE) ?? "");
    sessionStorage.removeItem(NOTICE);
    byId("key-form").hidden = false;
    byId("key").focus();
  }

  #showState(state, text = state) {
    const pill = byId("state");
    pill.dataset.state = state;
    document.body.dataset.state = state;
    if (pill.textContent !== text && !(state === "unreachable" && pill.textContent.startsWith("no answer"))) {
      pill.textContent = text;
    }
  }
}

/** Forget the key and all that was shown with it; the page that is loaded then says why. */
function closePage(reason) {
  forgetKey();
  sessionStorage.setItem(NOTICE, reason);
  location.reload();
}

function stateOf(status) {
  const states = status.models.map((model) => model.state);
  if (states.includes("stopped")) return "stopped";
  if (status.draining) return "draining";
  return ["loading", "restarting"].find((state) => states.includes(state)) ?? "ready";
}

/** A browser sends no key with a link: those that need one are named only. */
function showLinks(home) {
  const open = { Health: home.health, Metrics: home.metrics };
  const guarded = { "Documentation of every endpoint": home.documentation, Models: home.models, Status: home.status };
  const entry = ([name, path], locked) => {
    const link = make("a", { href: relative(path) }, name);
    return make("li", {}, ...(locked ? [`${name} (with the key): `, make("code", {}, path)] : [link]));
  };
  byId("links").replaceChildren(
    ...Object.entries(guarded).map((one) => entry(one, home.needs_key)),
    ...Object.entries(open).map((one) => entry(one, false)),
  );
}

new Page().open();
