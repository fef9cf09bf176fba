// BullMQ on Redis: 1 worker process (2 were slower), concurrency 100, jobs removed when done; bulk: addBulk, 1,000 a call.
// `node bullmq.mjs worker`, or `node bullmq.mjs drive phase:n ...` as benchmarks/drive.py does. 32 producers are 32 async
// loops. Counts as benchmarks/marks.py does, by a positioned write (node has no mmap): about 1 us more a task.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.BENCH_NODE, "package.json"));
const { Queue, Worker } = require("bullmq");
const BULK = 1000, THREADS = 32, PAUSE_MS = 50;
const folder = process.env.BENCH_DIR;
const { hostname, port, pathname } = new URL(process.env.BENCH_REDIS_URL);
const connection = { host: hostname, port: Number(port), db: Number(pathname.slice(1) || 0), maxRetriesPerRequest: null };
const now = () => (performance.timeOrigin + performance.now()) / 1000;

function worker() {
  let file, runs = 0;
  const mark = Buffer.alloc(24); // <Qdd: runs, start of the first, end of the last
  const noop = () => {
    if (file === undefined) {
      file = fs.openSync(path.join(folder, `${process.pid}.marks`), "w");
      mark.writeDoubleLE(now(), 8);
    }
    mark.writeBigUInt64LE(BigInt(++runs), 0);
    mark.writeDoubleLE(now(), 16);
    fs.writeSync(file, mark, 0, 24, 0);
  };
  const stamp = (order_id) => {
    const ns = BigInt(Math.round(now() * 1e6)) * 1000n;
    fs.appendFileSync(path.join(folder, "stamps"), `${order_id} ${ns}\n`);
  };
  const run = async (job) => (job.name === "stamp" ? stamp(job.data.order_id) : noop());
  const one = new Worker("bench", run, { connection, concurrency: 100 });
  process.on("SIGTERM", async () => { await one.close(); process.exit(0); });
}

async function drive(phases) {
  const defaultJobOptions = { removeOnComplete: true, removeOnFail: true };
  const queue = new Queue("bench", { connection, defaultJobOptions });
  const add = (order_id) => queue.add("noop", { order_id });
  const doing = {
    single: async (n) => { for (let i = 0; i < n; i++) await add(i); },
    threads: async (n) => {
      const loop = async (first) => { for (let i = first; i < n; i += THREADS) await add(i); };
      await Promise.all(Array.from({ length: THREADS }, (_, k) => loop(k)));
    },
    bulk: async (n) => {
      for (let start = 0; start < n; start += BULK) {
        const size = Math.min(BULK, n - start);
        await queue.addBulk(Array.from({ length: size }, (_, i) => ({ name: "noop", data: { order_id: start + i } })));
      }
    },
    latency: async (n) => {
      const sent = [];
      for (let i = 0; i < n; i++) {
        sent.push(Math.round(now() * 1e6) * 1000);
        await queue.add("stamp", { order_id: i });
        await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      }
      return sent;
    },
  };
  for (const arg of phases) {
    const [phase, n] = arg.split("@").length > 1 ? [arg.split("@")[0], arg.split(":")[1]] : arg.split(":");
    const start = performance.now(), cpu = process.cpuUsage();
    const sent = (await doing[phase](Number(n))) ?? null;
    const s = (performance.now() - start) / 1000, used = process.cpuUsage(cpu);
    console.log(JSON.stringify({ phase, way: "", n: Number(n), s, cpu_s: (used.user + used.system) / 1e6, sent }));
  }
  await queue.close();
}

process.argv[2] === "worker" ? worker() : await drive(process.argv.slice(3));
