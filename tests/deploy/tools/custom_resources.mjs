// Reads a JSON list of Kubernetes objects on stdin and prints a JSON list of what is wrong with each:
// a list of sentences, empty for a good one.
//
// Kinds that no package knows are held against the schemas of their published definitions, in definitions/
// (InferencePool v1.6.0, LeaderWorkerSet v0.9.0, RayJob v1.6.2; Apache-2.0, without descriptions, status,
// the rules in CEL, and what is below pod templates and a few more objects of Kubernetes' own). They are
// closed here: a field that they do not name is wrong.
//
// For all others two checks of one package's model of the kind: its JSON schema, compiled to a function, knows
// required fields, types, enumerations and patterns, but lets unknown fields pass, which a cluster
// drops or refuses. Its TypeScript interface knows every field.

import { existsSync, readFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import Ajv from "ajv";
import ts from "typescript";

const PACKAGES = {
  "keda.sh": "@kubernetes-models/keda",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
};
const OPTIONS = {
  module: ts.ModuleKind.NodeNext,
  moduleResolution: ts.ModuleResolutionKind.NodeNext,
  noEmit: true,
  skipLibCheck: true,
  strict: true,
  target: ts.ScriptTarget.ES2022,
  types: [],
};

function modelModule({ apiVersion, kind }) {
  const [group, version] = apiVersion.split("/");
  if (!(group in PACKAGES)) throw new Error(`no package knows ${apiVersion} ${kind}`);
  return `${PACKAGES[group]}/${group}/${version}/${kind}`;
}

function closed(schema) {
  if (schema?.properties) {
    const properties = Object.entries(schema.properties).map(([key, of]) => [key, closed(of)]);
    return { ...schema, additionalProperties: false, properties: Object.fromEntries(properties) };
  }
  return schema?.items ? { ...schema, items: closed(schema.items) } : schema;
}

function definition({ kind }) {
  return `${import.meta.dirname}/definitions/${kind.toLowerCase()}s.json`;
}

function definitionErrors(object) {
  const schema = JSON.parse(readFileSync(definition(object), "utf8"));
  const ajv = new Ajv.default({ allErrors: true, strict: false, validateFormats: false });
  const validate = ajv.compile(closed(schema));
  validate(object);
  return (validate.errors ?? []).map((error) => JSON.stringify(error));
}

async function schemaErrors(object) {
  const model = (await import(modelModule(object)))[object.kind];
  try {
    new model(object).validate();
    return [];
  } catch (error) {
    return [error.message];
  }
}

/** By the number of the object. */
function typeErrors(objects) {
  const names = objects.map((_, number) => `${import.meta.dirname}/object${number}.ts`);
  const sources = new Map(
    objects.map((object, number) => [
      names[number],
      `import type { I${object.kind} as Model } from "${modelModule(object)}";\n` +
        `export const object: Model = ${JSON.stringify(object)};\n`,
    ]),
  );
  const host = ts.createCompilerHost(OPTIONS);
  const { getSourceFile, fileExists } = host;
  host.fileExists = (name) => sources.has(name) || fileExists(name);
  host.getSourceFile = (name, version) =>
    sources.has(name)
      ? ts.createSourceFile(name, sources.get(name), version)
      : getSourceFile(name, version);
  const program = ts.createProgram(names, OPTIONS, host);
  return names.map((name) =>
    ts
      .getPreEmitDiagnostics(program, program.getSourceFile(name))
      .map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n")),
  );
}

const objects = JSON.parse(await text(process.stdin));
const ofPackages = objects.filter((object) => !existsSync(definition(object)));
const bySchema = await Promise.all(ofPackages.map(schemaErrors));
const byType = typeErrors(ofPackages);
const found = new Map(
  ofPackages.map((object, number) => [object, [...bySchema[number], ...byType[number]]]),
);
console.log(JSON.stringify(objects.map((object) => found.get(object) ?? definitionErrors(object))));
