// Answers by endpoint, refusals by reason.

import { byId, make } from "./dom.js";
import { LEFT, OWN, isFailure, isRefusal } from "./history.js";
import { count } from "./numbers.js";

const KINDS = {
  done: ["Done", (status) => status < 400],
  refused: ["Refused", isRefusal],
  left: ["Left", (status) => status === LEFT],
  failed: ["Failed", isFailure],
};

/** The counts of the daemon's answers, but to this page; `Left`: the client did not wait. */
export function showAnswers(history) {
  const answers = history.now.answers.filter((one) => !OWN.test(one.endpoint));
  const endpoints = [...new Set(answers.map((one) => one.endpoint))];
  const sum = (endpoint, is) =>
    answers.filter((one) => one.endpoint === endpoint && is(one.status)).reduce((n, one) => n + one.count, 0);
  const rows = endpoints.map((endpoint) => [endpoint, ...Object.values(KINDS).map(([, is]) => sum(endpoint, is))]);
  rows.sort((one, other) => other[1] - one[1]);
  const heads = ["Endpoint", ...Object.values(KINDS).map(([name]) => name)];
  byId("answers").replaceChildren(table("Answers by endpoint since the start", heads, rows));
}

/** Why requests were refused. */
export function showRefusals(history) {
  const reasons = Object.entries(history.now.refusals).sort((one, other) => other[1] - one[1]);
  if (reasons.length === 0) {
    byId("refusals").replaceChildren(make("p", { class: "note" }, "None since the start."));
    return;
  }
  const rows = reasons.map(([reason, all]) => [
    reason, all, history.growth((status) => status.refusals[reason] ?? 0),
  ]);
  byId("refusals").replaceChildren(table("Refusals by reason", ["Reason", "Since the start", "Last minute"], rows));
}

function table(caption, heads, rows) {
  const head = heads.map((name) => make("th", { scope: "col" }, name));
  const body = rows.map(([name, ...numbers]) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...numbers.map((n) => make("td", {}, n === 0 ? "" : count(n)))),
  );
  return make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}
