// The turns of a chat in the box, which goes on with the answers so far.

import { make } from "./dom.js";

const NAMES = { user: "You", assistant: "Model" };

export class Conversation {
  /** As messages of a request. */
  turns = [];

  /** Show the turns in `region`, then `question`. Returns the element for the text of its answer. */
  ask(question, region) {
    const open = [{ role: "user", content: question }, { role: "assistant", content: "" }];
    region.replaceChildren(...[...this.turns, ...open].map(shown));
    region.scrollTop = region.scrollHeight;
    return region.lastElementChild.lastElementChild;
  }

  /** Keep a question with its answer, whole or as far as it came. */
  add(question, answer) {
    this.turns.push({ role: "user", content: question }, { role: "assistant", content: answer });
  }
}

const shown = ({ role, content }) =>
  make("p", { class: `text ${role}` }, make("b", {}, NAMES[role]), make("span", {}, content));
