// Maps, typed arrays, strings and what they leave behind for the garbage collector; the output is the
// same each time. garbage.js ROUNDS
'use strict';
let seed = 1;
const next = () => (seed = (Math.imul(seed, 1664525) + 1013904223) | 0);
const map = new Map();
for (let round = 0; round < Number(process.argv[2]); round++) {
  for (let i = 0; i < 60000; i++) map.set(`key-${next() % 100000}`, {value: next(), text: `v${seed}`});
  const floats = new Float64Array(500000).map(next).sort();
  const bytes = Buffer.alloc(4 << 20);
  for (let i = 0; i < bytes.length; i += 4) bytes.writeInt32LE(next(), i);
  const digest = require('crypto').createHash('sha256').update(bytes).digest('hex');
  let sum = 0;
  for (const [key, {value, text}] of map) sum = (sum * 31 + value + key.length + text.length) | 0;
  console.log(round, map.size, sum, floats[0], floats[250000], digest, JSON.stringify([...map]).length);
}
