// A producer: node >= 18, no packages. `node producer.mjs TYPE PAYLOAD [KEY]` stores a task and prints its id.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const { TANDEMQ_API_URL: url = "http://127.0.0.1:8000", TANDEMQ_API_TOKEN: token } = process.env;
const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };

/** One try. Status 0: no answer that could be read. The timer also keeps node alive, which a fetch does not always. */
async function post(body) {
  const hurry = new AbortController();
  const timer = setTimeout(() => hurry.abort(), 20_000);
  try {
    const answer = await fetch(`${url}/jobs`, { method: "POST", headers, body, signal: hurry.signal });
    return { status: answer.status, pause: answer.headers.get("Retry-After"), said: await answer.json() };
  } catch (error) {
    return { status: 0, said: { detail: String(error.cause ?? error) } };
  } finally {
    clearTimeout(timer);
  }
}

/** Store a task; [job, whether it is new]. A key makes every repetition safe, so there is always one. */
export async function enqueue(type, payload, { idempotency_key = randomUUID(), patience_s = 120, ...options } = {}) {
  const body = JSON.stringify({ type, payload, idempotency_key, ...options });
  const until = Date.now() + 1000 * patience_s;
  for (;;) {
    const { status, pause, said } = await post(body);
    if (status === 200 || status === 201) return [said, status === 201];
    const mayPass = status === 0 || status === 429 || status >= 500;
    if (!mayPass || Date.now() > until) throw new Error(`${status} ${said.field ?? ""}: ${said.detail}`);
    await sleep(1000 * (pause ?? 1));
  }
}

if (process.argv[1]?.endsWith("producer.mjs")) {
  const [type, payload = "{}", idempotency_key] = process.argv.slice(2);
  const [job, created] = await enqueue(type, JSON.parse(payload), { idempotency_key });
  console.log(job.id_str, created ? "stored" : "was there already");
}
