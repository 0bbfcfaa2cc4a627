// Bundles src/index.tsx and src/lab.css into nbengine_widgets/static/lab.js and lab.css, and says how large they are.
import { build } from "esbuild";
import { mkdirSync, writeFileSync } from "node:fs";
import { deflateRawSync } from "node:zlib";

const LIMIT = 90_000; // bytes of lab.js and lab.css together: what every saved notebook carries
const plain = process.argv.includes("--plain");
const outdir = new URL("nbengine_widgets/static/", import.meta.url).pathname;
const common = { bundle: true, minify: true, target: "es2022", charset: "utf8", legalComments: "none", write: false };

async function bundle(entry, options = {}) {
  const { outputFiles } = await build({ ...common, entryPoints: [entry], ...options });
  return outputFiles[0].text;
}

const code = await bundle("src/index.tsx", {
  format: "esm",
  jsx: "transform", // h(…) is shorter than the automatic runtime's calls
  jsxFactory: "h",
  jsxFragment: "Fragment",
  inject: ["src/jsx.ts"],
  tsconfigRaw: "{}",
});
const packed = deflateRawSync(code, { level: 9 }).toString("base64");
const shell = () => bundle("src/loader.js", { format: "esm", define: { PACKED: JSON.stringify(packed) } });
const files = { "lab.js": plain ? code : await shell(), "lab.css": await bundle("src/lab.css") };

mkdirSync(outdir, { recursive: true });
let total = 0;
for (const [name, text] of Object.entries(files)) {
  writeFileSync(outdir + name, text);
  total += Buffer.byteLength(text);
}
const kb = (text) => `${(Buffer.byteLength(text) / 1000).toFixed(1)} kB`;
console.log(`lab.js ${kb(files["lab.js"])} (${kb(code)} before deflating), lab.css ${kb(files["lab.css"])}`);
if (!plain && total > LIMIT) throw new Error(`The bundle is ${total} bytes, more than ${LIMIT}.`);
