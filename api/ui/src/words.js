// Numbers, times and states in words.

const TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const PRECISE = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });

export const FINAL = new Set(["succeeded", "failed", "canceled", "expired"]);
export const STATUSES = ["queued", "running", "canceling", "succeeded", "failed", "canceled", "expired"];

export const number = (value) => NUMBER.format(value);
export const precise = (value) => (value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(3) : PRECISE.format(value));
export const time = (text) => (text ? TIME.format(new Date(text)) : "");
export const clock = (text) => (text ? CLOCK.format(new Date(text)) : "");

/** Return seconds in the two largest units: `3 min 20 s`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 59.95) return `${number(Math.round(seconds * 10) / 10)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** Return how long ago a time is. */
export function ago(text, now = Date.now()) {
  const seconds = (now - new Date(text)) / 1000;
  return seconds < 1 ? "just now" : `${duration(seconds < 60 ? Math.floor(seconds) : seconds)} ago`;
}

export function bytes(count) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let size = count;
  while (size >= 1000 && units.length > 1) {
    size /= 1000;
    units.shift();
  }
  return `${units[0] === "bytes" ? size : number(Math.round(size * 10) / 10)} ${units[0]}`;
}

/** Return square metres in a unit that reads well. */
export function area(m2) {
  if (m2 === null || m2 === undefined) return "";
  if (m2 >= 1e5) return `${number(m2 / 1e6)} km²`;
  return m2 >= 1e4 ? `${number(m2 / 1e4)} ha` : `${number(m2)} m²`;
}

/** Return the time that a job still needs, in words; empty without an estimate. */
export function left(job) {
  if (FINAL.has(job.status) || job.eta_seconds === null) return "";
  return `about ${duration(Math.max(1, Math.round(job.eta_seconds)))} left`;
}

/** Return the seconds from a job's submission to its end; null for one that has not ended. */
export function took(job) {
  return job.completed_at ? (new Date(job.completed_at) - new Date(job.created_at)) / 1000 : null;
}
