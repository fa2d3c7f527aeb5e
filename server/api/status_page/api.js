// Requests to the daemon that served this page, with the key of this tab.

const STORED = "penstock-key";

export class WrongKeyError extends Error {}

export const storedKey = () => sessionStorage.getItem(STORED);
export const storeKey = (key) => sessionStorage.setItem(STORED, key);
export const forgetKey = () => sessionStorage.removeItem(STORED);

/** What GET `path` answers, as JSON. Throws WrongKeyError, and Error for any other failure. */
export async function getJSON(path, seconds = 10) {
  const answer = await request(path, { signal: AbortSignal.timeout(seconds * 1000) });
  return answer.json();
}

/** POST `body` as JSON; the answer is one of success. */
export function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return request(path, { method: "POST", body: JSON.stringify(body), headers, signal });
}

/** The data of each server-sent event of an answer, up to `[DONE]`. */
export async function* events(answer) {
  let text = "";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const whole = (text + part.value).split("\n\n");
    text = whole.pop();
    for (const event of whole) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const json = JSON.parse(data);
      if (json.error) throw new Error(json.error.message);
      yield json;
    }
  }
}

/** An address of the daemon, relative: a proxy may serve it below a path of its own. */
export const relative = (path) => path.replace(/^\//, "./");

async function request(path, options) {
  const key = storedKey();
  const headers = { accept: "application/json", ...options.headers };
  if (key !== null) headers.authorization = `Bearer ${key}`;
  const answer = await fetch(relative(path), { ...options, headers, cache: "no-store" });
  if (answer.status === 401) throw new WrongKeyError("the key is not accepted");
  if (!answer.ok) throw new Error(await failure(answer));
  return answer;
}

async function failure(answer) {
  const body = await answer.json().catch(() => null);
  const error = body?.error;
  return `${answer.status}: ${error?.message ?? (typeof error === "string" ? error : answer.statusText)}`;
}
