// What can be tried at each endpoint: its fields, the body made of them, and how its answer is shown.

import { make } from "./dom.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter((line) => line !== "");
const long = (label, value) => ({ label, value, rows: 3 });
const short = (label, value) => ({ label, value, rows: 1 });
const TOKENS = { label: "At most so many tokens", value: "64", number: true };

const QUERY = short("Query", "What do pandas eat?");
const DOCUMENTS = long(
  "Documents, one a line",
  "Paris is the capital of France.\nThe giant panda lives on bamboo.\nBread is made of flour.",
);
const TEXTS = long("Texts, one a line", "The cat sat on the mat.\nA kitten rested on the rug.");

/** By path. A streamed answer is shown by `piece` (its events' text), another one by `show`. */
export const TRIALS = {
  "/v1/chat/completions": {
    fields: { message: long("Message", "Tell me about files."), tokens: TOKENS },
    body: ({ message, tokens }) => ({
      messages: [{ role: "user", content: message }], max_tokens: tokens, stream: true,
    }),
    piece: (event) => event.choices[0]?.delta?.content ?? "",
  },
  "/v1/completions": {
    fields: { prompt: long("Prompt", "The Python interpreter"), tokens: TOKENS },
    body: ({ prompt, tokens }) => ({ prompt, max_tokens: tokens, stream: true }),
    piece: (event) => event.choices[0]?.text ?? "",
  },
  "/v1/embeddings": {
    fields: { texts: TEXTS },
    body: ({ texts }) => ({ input: lines(texts) }),
    show: (answer, { texts }) =>
      table(["Text", "Size", "Vector"], answer.data.map(({ embedding }, i) => [lines(texts)[i], embedding.length, beginning(embedding)])),
  },
  "/embed_sparse": {
    fields: { texts: TEXTS },
    body: ({ texts }) => ({ inputs: lines(texts) }),
    show: (answer, { texts }) =>
      table(["Text", "Entries", "Largest"], answer.map((entries, i) => [lines(texts)[i], entries.length, largest(entries)])),
  },
  "/v1/rerank": {
    fields: { query: QUERY, documents: DOCUMENTS },
    body: ({ query, documents }) => ({ query, documents: lines(documents) }),
    show: (answer, { documents }) =>
      table(["Score", "Document"], answer.results.map((one) => [one.relevance_score.toFixed(4), lines(documents)[one.index]])),
  },
  "/v1/score": {
    fields: { query: short("Text", "A cat sits on a mat."), texts: TEXTS },
    body: ({ query, texts }) => ({ text_1: query, text_2: lines(texts) }),
    show: (answer, { texts }) =>
      table(["Score", "Text"], answer.data.map((one) => [one.score.toFixed(4), lines(texts)[one.index]])),
  },
  "/v1/classify": {
    fields: { texts: TEXTS },
    body: ({ texts }) => ({ input: lines(texts) }),
    show: (answer, { texts }) =>
      table(["Label", "Probabilities", "Text"], answer.data.map((one) => [one.label, beginning(one.probs), lines(texts)[one.index]])),
  },
  "/tokenize": {
    fields: { text: long("Text", "The quick brown fox") },
    body: ({ text }) => ({ prompt: text }),
    show: (answer) => table(["Tokens", "Ids"], [[answer.count, answer.tokens.join(", ")]]),
  },
};

function table(heads, rows) {
  const head = heads.map((name) => make("th", { scope: "col" }, name));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, String(cell)))));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

function beginning(numbers) {
  const shown = numbers.slice(0, 4).map((one) => one.toFixed(3));
  return shown.join(", ") + (numbers.length > 4 ? ", …" : "");
}

function largest(entries) {
  const sorted = [...entries].sort((one, other) => other.value - one.value).slice(0, 4);
  return sorted.map(({ index, value }) => `${index}: ${value.toFixed(2)}`).join(", ");
}
