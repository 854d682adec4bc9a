// A peer of the interoperability run in JavaScript, on npm's zeromq: see qa/interop/__init__.py for its commands.

import { createInterface } from "node:readline";
import { readFileSync, writeFileSync } from "node:fs";
import { Dealer, Request, Router } from "zeromq";

const common = { linger: 0, sendHighWaterMark: 0, receiveHighWaterMark: 0 };

/** Options of a socket with these keys: public, secret, server's public key; a server has two, NULL none. */
function security([publicKey, secretKey, server]) {
  if (!publicKey) return common;
  const own = { ...common, curvePublicKey: publicKey, curveSecretKey: secretKey };
  return server ? { ...own, curveServerKey: server } : { ...own, curveServer: true };
}

/** Ends the process when the parent closes standard input. */
function endWithParent() {
  process.stdin.on("end", () => process.exit(0)).resume();
}

async function client(endpoint, type, heartbeat, ...keys) {
  const options = { ...security(keys), heartbeatInterval: Number(heartbeat), heartbeatTimeout: 10 * heartbeat };
  const socket = new (type === "REQ" ? Request : Dealer)(options);
  socket.connect(endpoint);
  console.log("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    const [request, reply] = line.split(" ");
    await socket.send(readFileSync(request));
    const [message] = await socket.receive();
    writeFileSync(reply, message);
    console.log("done");
  }
  socket.close();
}

async function echo(endpoint, ...keys) {
  endWithParent();
  const router = new Router(security(keys));
  await router.bind(endpoint);
  console.log("ready");
  for await (const parts of router) await router.send(parts);
}

async function relay(endpoint, server, ...keys) {
  endWithParent();
  const router = new Router(security(keys));
  const dealer = new Dealer(common);
  await router.bind(endpoint);
  dealer.connect(server);
  console.log("ready");
  let sender;
  const requests = (async () => {
    for await (const [id, message] of router) {
      sender = id;
      await dealer.send(message);
    }
  })();
  for await (const [message] of dealer) await router.send([sender, message]);
  await requests;
}

const [role, ...words] = process.argv.slice(2);
await { client, echo, relay }[role](...words);
