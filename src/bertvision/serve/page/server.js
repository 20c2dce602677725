// Asking the server. What goes wrong is a Trouble with one sentence; the page decides what to offer.

const PATIENCE = 60_000;
const KEY = "bertvision-key";

export class Trouble extends Error {
  /** @param {"key" | "gone" | "refused"} kind */
  constructor(kind, sentence) {
    super(sentence);
    this.kind = kind;
  }
}

/** Kept for this tab only, so that a reload need not ask for it again. */
export const setKey = (key) => sessionStorage.setItem(KEY, key);

async function call(address, options, signal) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  let answer;
  try {
    answer = await fetch(address, { ...options, headers, signal: AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]) });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Trouble("gone", "The server does not answer. Is it still running?");
  }
  let reply = null;
  try {
    reply = await answer.json();
  } catch (error) {
    if (signal.aborted) throw error;
  }
  if (answer.ok && reply !== null) return reply;
  const sentence = typeof reply?.error === "string" ? reply.error : `the server answered with ${answer.status}`;
  const kind = answer.status === 401 ? "key" : answer.status === 429 || answer.status >= 500 ? "gone" : "refused";
  throw new Trouble(kind, sentence[0].toUpperCase() + sentence.slice(1) + ".");
}

export const models = (signal) => call("v1/models", {}, signal);

export const explain = (body, signal) =>
  call("v1/explain", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }, signal);
