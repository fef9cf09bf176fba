// Handlers for worker.mjs in tests: what ran is told by the probe file alone, in the lines of tests/probe.py.
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const note = (id, what) =>
  appendFileSync(process.env.TANDEMQ_TEST_PROBE, `${id} 1 ${process.pid} ${what} ${(Date.now() / 1000).toFixed(6)}\n`);

/** `n` identifies a task to the test: a handler is given its payload, not its id. */
async function noted({ n, ms = 0, until = "" }, signal) {
  note(n, "start");
  while (until && !existsSync(until) && !signal.aborted) await sleep(10);
  if (ms) await sleep(ms);
  if (signal.aborted) throw new Error("it is not wanted any more");
  note(n, "end");
  return { n, by: "javascript" };
}

export default {
  beside: noted,
  "js.hold": noted,
  "js.fail": ({ n, how }) => {
    note(n, "start");
    throw Object.assign(new RangeError(`no luck with ${n}`), { how });
  },
  "js.odd": ({ how }) => {
    const odd = {
      bigint: () => ({ n: 10n }),
      surrogate: () => "\ud800",
      "throws null": () => { throw null; },
      "throws what has no text": () => { throw Object.create(null); },
    };
    return odd[how]();
  },
  "js.text": ({ text }) => ({ text, surrogate: text.charCodeAt(0) }),
};
