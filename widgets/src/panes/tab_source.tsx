// Source: the engine's own lines around the one that decided.

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Moment } from "./context";

export function SourceTab({ moment: { store } }: { moment: Moment }): JSX.Element {
  const { source } = store;
  const lit = useRef<HTMLLIElement>(null);
  useEffect(() => {
    const box = lit.current?.closest(".nbe-scroll");
    if (box && lit.current) box.scrollTop = lit.current.offsetTop - box.clientHeight / 3;
  }, [source?.file, source?.line, source?.found]);
  if (!source) return <p class="nbe-none">Each decision under Why links to the line that made it.</p>;
  const place = `${source.found?.file ?? (source.file || "scheduler.py")}:${source.line}`;
  if (!source.found) {
    const text = source.waiting ? "fetching …" : "The source is read from the kernel; without one only its place is known.";
    return (
      <>
        <p class="nbe-title nbe-mono">{place}</p>
        <p class="nbe-none">{text}</p>
      </>
    );
  }
  const indent = Math.min(...source.found.lines.filter((line) => line.trim()).map((line) => line.search(/\S/)));
  return (
    <>
      <p class="nbe-title nbe-mono nbe-place">{place}</p>
      <ol class="nbe-source nbe-mono" start={source.found.first_line} style={{ counterReset: `line ${source.found.first_line - 1}` }}>
        {source.found.lines.map((line, i) => {
          const here = source.found!.first_line + i === source.line;
          return (
            <li key={i} ref={here ? lit : undefined} class={here ? "nbe-here" : undefined} aria-current={here ? "true" : undefined}>
              {line.slice(indent) || " "}
            </li>
          );
        })}
      </ol>
    </>
  );
}
