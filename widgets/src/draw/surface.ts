// A canvas at the screen's own resolution.

export function surface(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const scale = Math.min(3, window.devicePixelRatio || 1);
  const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const g = canvas.getContext("2d");
  if (!g) return null;
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

export function roundRect(g: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, r: number): void {
  g.beginPath();
  g.roundRect(x, y, w, h, r);
}

/** `text` cut to `width`, from the front: ids differ at their end. In a font whose characters are all `each` wide. */
export function fitMono(text: string, width: number, each: number): string {
  const room = Math.floor(width / each + 0.05);
  if (text.length <= room) return text;
  return room >= 3 ? `…${text.slice(1 - room)}` : "";
}

const widths = new Map<string, number>();

/** The width of a character in a monospaced font: measuring costs a millisecond where fonts must be looked up. */
export function monoWidth(g: CanvasRenderingContext2D, font: string): number {
  let width = widths.get(font);
  if (width === undefined) {
    g.font = font;
    width = g.measureText("0000000000").width / 10;
    widths.set(font, width);
  }
  return width;
}

export interface Label {
  text: string;
  x: number;
  y: number;
  color: string;
  alpha: number;
}

/** All labels of one font at once: changing the font is what is slow. */
export function drawLabels(g: CanvasRenderingContext2D, font: string, labels: Label[]): void {
  if (!labels.length) return;
  g.font = font;
  for (const { text, x, y, color, alpha } of labels) {
    g.fillStyle = color;
    g.globalAlpha = alpha;
    g.fillText(text, x, y);
  }
  g.globalAlpha = 1;
}
