// Bundles src/index.tsx into nbengine_widgets/static/lab.js and src/lab.css into lab.css, and says how large they are.
import { build } from "esbuild";
import { statSync } from "node:fs";

const LIMIT_KB = 90;
const outdir = new URL("nbengine_widgets/static/", import.meta.url).pathname;

await build({
  entryPoints: { lab: "src/index.tsx" },
  bundle: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  minify: true,
  charset: "utf8",
  legalComments: "none",
  outdir,
});
await build({ entryPoints: { lab: "src/lab.css" }, bundle: true, minify: true, charset: "utf8", target: "es2022", outdir });

const kb = ["lab.js", "lab.css"].map((name) => statSync(outdir + name).size / 1000);
console.log(`lab.js ${kb[0].toFixed(1)} kB + lab.css ${kb[1].toFixed(1)} kB`);
if (kb[0] + kb[1] > LIMIT_KB) throw new Error(`the bundle is larger than ${LIMIT_KB} kB`);
