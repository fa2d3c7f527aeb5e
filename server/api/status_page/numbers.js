// Numbers as people read them.

export const NONE = "–";

/** 7, 0.7, 1,234, 12.3 M */
export function count(value) {
  if (value === null || !Number.isFinite(value)) return NONE;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 10 || Number.isInteger(value)) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(1);
}

/** Seconds: 12 ms, 1.25 s, 3 min */
export function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return NONE;
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 120 ? `${seconds.toFixed(2)} s` : `${Math.round(seconds / 60)} min`;
}

/** A share of 1 in per cent. */
export function percent(share) {
  if (share === null || !Number.isFinite(share)) return NONE;
  return `${share > 0 && share < 0.0995 ? (100 * share).toFixed(1) : Math.round(100 * share)} %`;
}
