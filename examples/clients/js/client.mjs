// A client of dyn_service in JavaScript, written from docs/protocol.md: one DEALER socket, one MessagePack map each way.
//
//   const client = new Client("tcp://127.0.0.1:5755");
//   const { tau } = await client.ask("inverse_dynamics", "panda", { q, v, a });
//
// Inputs are numbers, Float64Arrays, lists of numbers (nested for batches) or maps, as the protocol's tables say; outputs are
// { shape, data: Float64Array }. Many questions may be under way at once.

import { randomInt } from "node:crypto";
import { decode, encode } from "@msgpack/msgpack";
import { Dealer } from "zeromq";

/** An error that the server answered, or that no answer came: decide by `code`, show `message`. */
export class DynError extends Error {
  constructor({ code, message, path }) {
    super(path ? `${path}: ${message}` : message);
    this.code = code;
    this.path = path;
  }
}

export class Client {
  #socket = new Dealer({ immediate: true, linger: 0, sendTimeout: 1000, heartbeatInterval: 2000, heartbeatTimeout: 6000 });
  #waiting = new Map();
  #models = new Map();
  #nextId = randomInt(2 ** 47);
  #sending = Promise.resolve();

  constructor(endpoint, { timeoutMs = 1000, compileWaitMs = 60000 } = {}) {
    Object.assign(this, { endpoint, timeoutMs, compileWaitMs });
    this.#socket.connect(endpoint);
    this.#receive();
  }

  /** The robot's joints, links, sizes and fingerprint; later questions on it name that fingerprint. */
  async describe(robot) {
    const description = await this.ask("describe_robot", robot);
    this.#models.set(robot, description.fingerprint);
    return description;
  }

  /** The outputs by name. Throws a DynError. */
  async ask(query, robot, inputs = {}, options = {}) {
    const id = this.#nextId++;
    const request = { v: 1, id, query, robot, inputs: packed(inputs), options };
    Object.assign(request, { deadline_ms: this.timeoutMs, compile_wait_ms: this.compileWaitMs });
    if (this.#models.has(robot)) request.model = this.#models.get(robot);
    const reply = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    this.#wait(id, this.timeoutMs);
    this.#sending = this.#sending
      .then(() => this.#socket.send(encode(request)))
      .catch((error) => this.#fail(id, `no server took the request at ${this.endpoint} within 1000 ms (${error.code})`));
    return reply;
  }

  close() {
    for (const id of this.#waiting.keys()) this.#fail(id, "the client was closed");
    this.#socket.close();
  }

  async #receive() {
    for await (const [frame] of this.#socket) {
      const reply = decode(frame);
      const waiting = this.#waiting.get(reply.id);
      if (!waiting) continue; // the late reply to a question that was given up
      if (reply.notice) {
        this.#wait(reply.id, this.compileWaitMs); // the server compiles: its deadline is extended, and so is ours
        continue;
      }
      this.#forget(reply.id);
      if (reply.ok) waiting.resolve(unpacked(reply.outputs));
      else waiting.reject(new DynError(reply.error));
    }
  }

  #wait(id, ms) {
    const waiting = this.#waiting.get(id);
    clearTimeout(waiting.timer);
    // the server's own DEADLINE_EXCEEDED says more than ours: it is given a little time to arrive
    waiting.timer = setTimeout(() => this.#fail(id, `no answer came from ${this.endpoint} within ${ms} ms`), ms + 100);
  }

  #fail(id, message) {
    const waiting = this.#waiting.get(id);
    if (!waiting) return;
    this.#forget(id);
    waiting.reject(new DynError({ code: "UNAVAILABLE", message }));
  }

  #forget(id) {
    clearTimeout(this.#waiting.get(id).timer);
    this.#waiting.delete(id);
  }
}

/** Inputs with each Float64Array as the protocol's array; maps and lists of maps (wrenches, overlays) inside too. */
function packed(value) {
  if (value instanceof Float64Array) return array(value, [value.length]);
  if (Array.isArray(value)) return value.map(packed);
  if (value === null || typeof value !== "object" || value instanceof Uint8Array) return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, packed(item)]));
}

/** A batch for an input: numbers in C order, and their shape, such as array(numbers, [1000, 7]). */
export function array(numbers, shape) {
  const data = new Uint8Array(8 * numbers.length);
  const view = new DataView(data.buffer);
  numbers.forEach((number, k) => view.setFloat64(8 * k, number, true));
  return { dtype: "<f8", shape, data };
}

/** Outputs with each array's bytes as numbers. */
function unpacked(value) {
  if (Array.isArray(value)) return value.map(unpacked);
  if (value === null || typeof value !== "object" || value instanceof Uint8Array) return value;
  if (value.dtype === "<f8" && value.data instanceof Uint8Array) {
    const view = new DataView(value.data.buffer, value.data.byteOffset, value.data.byteLength);
    return { shape: value.shape, data: Float64Array.from({ length: view.byteLength / 8 }, (_, k) => view.getFloat64(8 * k, true)) };
  }
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, unpacked(item)]));
}
