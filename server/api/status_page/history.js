// The last minute of answers of /status, and what follows from the differences between them.

/** What this page asks for. */
export const OWN = /^\/(status|status-page\/.*)$/;
const PROBES = /^\/(metrics|health.*)$/;
/** The status of an answer for which the client did not wait. */
export const LEFT = 499;

const KEPT_SECONDS = 60;

export class History {
  #polls = [];

  /** Add an answer. Where a count is lower than before, the daemon is another one: begin anew. */
  add(status) {
    const last = this.#polls.at(-1);
    if (last && isOlder(status, last)) this.#polls = [];
    this.#polls.push(status);
    const oldest = status.clock_seconds - KEPT_SECONDS;
    while (this.#polls.length > 2 && this.#polls[1].clock_seconds <= oldest) this.#polls.shift();
  }

  get now() {
    return this.#polls.at(-1);
  }

  /** How much `read(status)` grew a second between the last two answers; null after the first. */
  rate(read) {
    const [before, now] = [this.#polls.at(-2), this.#polls.at(-1)];
    if (!before) return null;
    return (read(now) - read(before)) / (now.clock_seconds - before.clock_seconds);
  }

  /** How much `read(status)` grew in the last minute, or since the page was opened. */
  growth(read) {
    return read(this.now) - read(this.#polls[0]);
  }

  /** The quantiles of a histogram's values in the last minute: seconds, null where there are none. */
  quantiles(read, shares) {
    return quantilesBetween(read(this.#polls[0]), read(this.now), shares);
  }

  /** The same between the last two answers. */
  newQuantiles(read, shares) {
    return quantilesBetween(read(this.#polls.at(-2) ?? this.now), read(this.now), shares);
  }

  /** How a stage divided its time between its engine's last heartbeats: {busy, waiting, transfer,
      idle, free}, shares of 1; null if there was but one heartbeat in the last minute. */
  shares(model, copy, stage) {
    const now = this.now.models[model].engines[copy];
    const end = beatTime(this.now, now);
    for (let i = this.#polls.length - 2; i >= 0; i--) {
      const before = this.#polls[i].models[model].engines[copy];
      const seconds = end - beatTime(this.#polls[i], before);
      if (!before.stages[stage] || !(seconds > 1.5)) continue;
      return sharesOf(before.stages[stage], now.stages[stage], seconds);
    }
    return null;
  }
}

/** The values at `shares` of a histogram's growth, each within its bucket by a straight line. */
export function quantilesBetween(before, now, shares) {
  const counts = now.counts.map((upto, i) => upto - (before.counts[i] ?? 0));
  const total = counts.reduce((sum, one) => sum + one, 0);
  return shares.map((share) => {
    let left = share * total;
    if (total === 0) return null;
    for (const [i, inside] of counts.entries()) {
      if (left <= inside && inside > 0) {
        const low = i === 0 ? 0 : now.bounds[i - 1];
        return i === now.bounds.length ? low : low + (left / inside) * (now.bounds[i] - low);
      }
      left -= inside;
    }
    return now.bounds.at(-1);
  });
}

/** Histograms with the same bounds, added up. */
export function sumOfTimes(all) {
  const counts = all[0].counts.map((_, i) => all.reduce((sum, one) => sum + one.counts[i], 0));
  return { bounds: all[0].bounds, counts };
}

/** Whether an answer of this HTTP status refused its request. */
export const isRefusal = (status) => status >= 400 && status !== LEFT && !isFailure(status);

/** Whether the daemon failed; 424 is text-embeddings-inference's 500. */
export const isFailure = (status) => status === 500 || status === 424;

/** All answers to clients. */
export const answered = (status) => sumOf(toClients(status));

/** All refusals of what clients asked. */
export const refused = (status) => sumOf(toClients(status).filter((one) => isRefusal(one.status)));

/** Answers neither to this page nor to those who watch the daemon. */
const toClients = (status) =>
  status.answers.filter(({ endpoint }) => !OWN.test(endpoint) && !PROBES.test(endpoint));

const sumOf = (answers) => answers.reduce((sum, one) => sum + one.count, 0);

function sharesOf(before, now, seconds) {
  const spent = (name) => Math.max(0, (now[`${name}_seconds`] - before[`${name}_seconds`]) / seconds);
  const parts = ["busy", "waiting", "transfer", "idle"].map((name) => [name, spent(name)]);
  const all = parts.reduce((sum, [, share]) => sum + share, 0);
  const scale = all > 1 ? 1 / all : 1; // a step that ends between heartbeats counts whole
  const shares = Object.fromEntries(parts.map(([name, share]) => [name, share * scale]));
  return { ...shares, free: Math.max(0, 1 - all) };
}

function beatTime(status, engine) {
  return status.clock_seconds - (engine.values.heartbeat_age_seconds ?? 0);
}

function isOlder(status, last) {
  return (
    status.clock_seconds <= last.clock_seconds ||
    answered(status) < answered(last) ||
    status.models.length !== last.models.length
  );
}
