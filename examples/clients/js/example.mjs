// Torques that hold a robot still, and what happens when it is asked about with a NaN.
//
//   node example.mjs [ENDPOINT [ROBOT]]

import { array, Client, DynError } from "./client.mjs";

const [endpoint = "tcp://127.0.0.1:5755", named] = process.argv.slice(2);
const client = new Client(endpoint);
try {
  const robot = named ?? (await client.ask("list_robots")).robots[0];
  const { nq, nv, joint_names } = await client.describe(robot);
  const [q, still] = [new Float64Array(nq).fill(0.1), new Float64Array(nv)];

  const { tau } = await client.ask("inverse_dynamics", robot, { q, v: still, a: still });
  joint_names.forEach((name, k) => console.log(`${name}: ${tau.data[k].toFixed(6)}`));

  // A thousand states in one question; and many questions at once.
  const many = array(Float64Array.from({ length: 1000 * nq }, () => 0.1), [1000, nq]);
  const batch = await client.ask("inverse_dynamics", robot, { q: many, v: still, a: still });
  console.log(`batch of ${batch.tau.shape[0]}: ${batch.tau.data.every((x, k) => x === tau.data[k % nv]) ? "the same bits" : "other bits"}`);
  const both = await Promise.all(Array.from({ length: 100 }, () => client.ask("gravity_forces", robot, { q })));
  console.log(`at once: ${both.length} answers, ${both.every(({ forces }) => forces.data.every((x, k) => x === tau.data[k])) ? "all equal" : "not equal"}`);

  q[0] = NaN;
  await client.ask("inverse_dynamics", robot, { q, v: still, a: still }).catch((error) => {
    if (!(error instanceof DynError)) throw error;
    console.log(`refused: ${error.code} ${error.message}`);
  });
} catch (error) {
  if (!(error instanceof DynError)) throw error;
  console.error(`error: ${error.message}`);
  process.exitCode = 1;
} finally {
  client.close();
}
