// What can be tried at each endpoint: its fields, the body made of them, and how its answer is shown.

import { make } from "./dom.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter((line) => line !== "");
const long = (label, value) => ({ label, value, rows: 3, attributes: { required: "" } });
const short = (label, value) => ({ label, value, attributes: { type: "text", required: "" } });

const SYSTEM = { label: "System prompt", value: "", rows: 3, attributes: { placeholder: "None" } };
const TOKENS = { label: "Tokens at most", value: "64", attributes: { type: "number", min: 1, required: "" } };
const TEMPERATURE = {
  label: "Temperature",
  value: "",
  attributes: { type: "number", min: 0, step: "any", placeholder: "Default" },
};
const QUERY = short("Query", "What do pandas eat?");
const DOCUMENTS = long(
  "Documents, one a line",
  "Paris is the capital of France.\nThe giant panda lives on bamboo.\nBread is made of flour.",
);
const TEXTS = long("Texts, one a line", "The cat sat on the mat.\nA kitten rested on the rug.");

/** By path. A streamed answer is shown by `piece` (its events' text), another one by `show`. With
    `turn`, the field of this name and the answer are turns of a conversation. */
export const TRIALS = {
  "/v1/chat/completions": {
    fields: {
      system: SYSTEM,
      message: long("Message", "Tell me about files."),
      tokens: TOKENS,
      temperature: TEMPERATURE,
    },
    turn: "message",
    body: ({ system, message, tokens, temperature }, turns) => ({
      messages: [
        ...(system === "" ? [] : [{ role: "system", content: system }]),
        ...turns,
        { role: "user", content: message },
      ],
      max_tokens: tokens,
      temperature,
      stream: true,
    }),
    piece: (event) => event.choices[0]?.delta?.content ?? "",
  },
  "/v1/completions": {
    fields: { prompt: long("Prompt", "The Python interpreter"), tokens: TOKENS, temperature: TEMPERATURE },
    body: ({ prompt, tokens, temperature }) => ({ prompt, max_tokens: tokens, temperature, stream: true }),
    piece: (event) => event.choices[0]?.text ?? "",
  },
  "/v1/decisions": {
    fields: {
      input: long("Input", "The parcel came late and the box was torn. I want my money back."),
      statements: long("Statements, one a line", "The customer asks for a refund.\nThe customer is glad."),
      question: short("Question", "Which team answers this?"),
      options: long("Options, one a line", "billing\ndelivery\nsales"),
    },
    body: ({ input, statements, question, options }) => ({
      input,
      questions: [
        ...lines(statements).map((instructions) => ({ type: "predicate", instructions })),
        { type: "choice", instructions: question, choices: lines(options).map((value) => ({ value })) },
      ],
    }),
    show: (answer, { statements, question }) =>
      table(["Question", "Probabilities"], answer.answers.map((one, i) => [[...lines(statements), question][i], likeliest(one)])),
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

function likeliest({ probability, probabilities }) {
  const shares = probabilities ?? [{ value: true, probability }];
  const sorted = [...shares].sort((one, other) => other.probability - one.probability);
  return sorted.map((one) => `${one.value}: ${one.probability.toFixed(3)}`).join(", ");
}

function beginning(numbers) {
  const shown = numbers.slice(0, 4).map((one) => one.toFixed(3));
  return shown.join(", ") + (numbers.length > 4 ? ", …" : "");
}

function largest(entries) {
  const sorted = [...entries].sort((one, other) => other.value - one.value).slice(0, 4);
  return sorted.map(({ index, value }) => `${index}: ${value.toFixed(2)}`).join(", ");
}
