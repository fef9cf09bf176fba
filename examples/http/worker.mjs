// A worker: node >= 18, no packages. `node worker.mjs handlers.mjs`; TERM lets it finish what it has begun.
const { TANDEMQ_API_URL: url, TANDEMQ_API_TOKEN: key, QUEUES = "default", SLOTS = 4, LEASE_S = 30, HOSTNAME } = process.env;
const { default: handlers } = await import(new URL(process.argv[2], `file://${process.cwd()}/`));
const ask = { method: "POST", headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) } };
const me = { worker_id: `${process.pid}@${HOSTNAME ?? "node"}`.slice(0, 48), queues: QUEUES.split(","), lease: +LEASE_S };
let stopping = false;
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => (stopping = true));
const awake = setInterval(() => {}, 1000); // a fetch does not always keep node alive

// [status, answer]. Status 0: the API or its database is away, and it has waited as long as it was told to.
async function send(path, body) {
  const answer = await fetch(url + path, { ...ask, body, signal: AbortSignal.timeout(60_000) }).catch(console.error);
  if (answer?.status < 500 && answer.status !== 429) return [answer.status, await answer.json().catch(() => ({}))];
  return new Promise((again) => setTimeout(again, 1000 * (answer?.headers.get("Retry-After") ?? 1), [0, {}]));
}

async function work({ id_str, lease_token, type, payload }) { // id_str: an id may be above 2^53
  const lost = new AbortController();
  const say = (verb, more) => [`/jobs/${id_str}/${verb}`, JSON.stringify({ lease_token, ...more })];
  const look = ([status, answer]) => (status >= 400 || answer.cancel_requested) && lost.abort(); // 409: not ours now
  const beat = setInterval(() => send(...say("heartbeat")).then(look), me.lease * 333);
  const run = async () => say("complete", { result: await handlers[type](payload, lost.signal) });
  const failed = (e) => say("fail", { error: e?.message ?? String(e), error_type: e?.name, traceback: e?.stack, ...e?.how });
  const tell = (end) => send(...end).then((said) => (said[0] ? said : tell(end))); // said twice it is 200 again
  const [status, { detail }] = await tell(await run().catch(failed).catch(failed).finally(() => clearInterval(beat)));
  if ([400, 413].includes(status)) await tell(say("fail", { error: detail, retryable: false })); // refused: no better later
}

async function claimed() { // never cut off: what is on its way would have to wait until its lease has run out
  const [status, answer] = await send("/jobs/claim", JSON.stringify({ ...me, types: Object.keys(handlers), wait: 5 }));
  if (status >= 400) throw new Error(answer.detail);
  return answer.jobs ?? []; // 204: nothing came
}

const slot = async () => { while (!stopping) for (const job of await claimed()) await work(job); };
await Promise.all(Array.from({ length: SLOTS }, slot)).finally(() => clearInterval(awake));
