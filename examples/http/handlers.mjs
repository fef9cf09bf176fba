// What worker.mjs can do: a function for each task type. What it returns (JSON) is the task's result.
// `signal` is aborted when the task is cancelled or belongs to another worker: stop then, nobody waits for the answer.
import { createHash } from "node:crypto";

/** An error that says how it is to be retried: `retryable: false` never, `retry_after` in so many seconds. */
export class Failure extends Error {
  constructor(message, how) {
    super(message);
    Object.assign(this, { name: "Failure", how });
  }
}

export default {
  "text.digest": ({ text }) => {
    if (typeof text !== "string") throw new Failure("text must be a string", { retryable: false });
    return { sha256: createHash("sha256").update(text).digest("hex"), length: text.length };
  },

  "page.fetch": async ({ url }, signal) => {
    const answer = await fetch(url, { signal });
    const retry_after = Number(answer.headers.get("Retry-After")) || 60;
    if ([429, 503].includes(answer.status)) throw new Failure(`${url} is busy`, { retry_after });
    if (!answer.ok) throw new Failure(`${url}: ${answer.status}`, { retryable: answer.status >= 500 });
    return { status: answer.status, bytes: (await answer.arrayBuffer()).byteLength };
  },
};
