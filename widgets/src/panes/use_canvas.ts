// Hooks for canvases: the size of an element, and drawing after each render.

import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { surface } from "../draw/surface";

/** The inner size of the element, kept up by a ResizeObserver. */
export function useSize<T extends HTMLElement>(): [RefObject<T | null>, { width: number; height: number }] {
  const box = useRef<T>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = (): void => {
      const [width, height] = [Math.floor(element.clientWidth), Math.floor(element.clientHeight)];
      setSize((known) => (known.width === width && known.height === height ? known : { width, height }));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [box, size];
}

/** Draw on the canvas after every render in which `key` has changed. */
export function useDrawing(
  width: number,
  height: number,
  key: unknown[],
  draw: (g: CanvasRenderingContext2D) => void,
): RefObject<HTMLCanvasElement | null> {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    if (!canvas.current || width <= 0 || height <= 0) return;
    const g = surface(canvas.current, width, height);
    if (g) draw(g);
  }, [width, height, ...key]);
  return canvas;
}

/** Run `effect` once, and what it returns at the end. */
export function useOnce(effect: () => () => void): void {
  useEffect(effect, []);
}
