// What JSX becomes: esbuild puts this import into every file, since calls of h() are shorter than the automatic runtime's.

export { Fragment, h } from "preact";
