// The shell of lab.js. Each Lab carries its bundle into the saved notebook, so the bundle travels deflated: build.mjs puts it
// in place of PACKED, and it unfolds here, in the browser, at its first use. `node build.mjs --plain` leaves it readable.

const packed = PACKED;
let unfolded;

async function unfold() {
  const bytes = Uint8Array.from(atob(packed), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const url = URL.createObjectURL(new Blob([await new Response(stream).text()], { type: "text/javascript" }));
  try {
    return await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}

const code = () => (unfolded ??= unfold());

export default async () => (await code()).default();
export const mountRecording = async (...args) => (await code()).mountRecording(...args);
