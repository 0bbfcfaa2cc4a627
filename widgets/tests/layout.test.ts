import { describe, expect, it } from "vitest";
import { axisTop, cellAt, cellUnder, clampScale, fitScale, gridLayout, logHeight, niceCeiling, packLanes, stackHeights, stepOfX, xOfStep, zoomScale } from "../src/core/layout";
import { duration, grouped, ordinal, ranges, shortId } from "../src/core/words";

describe("the block grid", () => {
  it.each([1, 16, 32, 100, 1000, 10_000])("%i blocks fit the space, in cells that do not overlap", (count) => {
    const layout = gridLayout(count, 640, 280);
    expect(layout.totalHeight).toBeLessThanOrEqual(280);
    expect(layout.columns * (layout.width + layout.gap) - layout.gap).toBeLessThanOrEqual(640);
    expect(layout.rows * layout.columns).toBeGreaterThanOrEqual(count);
    for (const index of [0, count >> 1, count - 1]) {
      const { x, y } = cellAt(layout, index);
      expect(cellUnder(layout, count, x + layout.width / 2, y + layout.height / 2)).toBe(index);
    }
  });

  it("drops labels as cells shrink", () => {
    expect([16, 32, 128, 10_000].map((count) => gridLayout(count, 640, 280).labels)).toEqual([2, 2, 1, 0]);
  });

  it("has nothing between large cells and beyond the last", () => {
    const layout = gridLayout(10, 640, 280);
    expect(cellUnder(layout, 10, layout.width + layout.gap / 2, 5)).toBe(-1);
    expect(cellUnder(layout, 10, 5, layout.totalHeight + 50)).toBe(-1);
    expect(cellUnder(layout, 10, -4, 5)).toBe(-1);
  });

  it("grows taller than its space rather than vanish", () => {
    expect(gridLayout(200_000, 300, 100).totalHeight).toBeGreaterThan(100);
  });
});

describe("the time scale", () => {
  it("fits all steps, none wider than it need be", () => {
    expect(fitScale(0, 40, 1280).perStep).toBe(21);
    const long = fitScale(0, 5000, 1280);
    expect(xOfStep(long, 5000)).toBeLessThanOrEqual(1280);
    expect(stepOfX(long, xOfStep(long, 1234) + 0.01)).toBe(1234);
  });

  it("zooms around the pointer and stays within the run", () => {
    const scale = fitScale(0, 1000, 1000);
    const near = zoomScale(scale, 4, 500, 0, 1000);
    expect(stepOfX(near, 500)).toBe(stepOfX(scale, 500));
    expect(zoomScale(near, 0.001, 500, 0, 1000).perStep).toBeCloseTo(scale.perStep);
    expect(clampScale({ ...near, from: -50 }, 0, 1000).from).toBe(0);
    expect(clampScale({ ...near, from: 5000 }, 0, 1000).from).toBeLessThan(1000);
  });
});

describe("bars and lanes", () => {
  it("stacks parts to the height of their sum", () => {
    expect(stackHeights([1, 2, 1], 8, 80)).toEqual([10, 20, 10]);
    expect(stackHeights([0, 0], 8, 80)).toEqual([0, 0]);
    expect(stackHeights([8, 24], 8, 80)).toEqual([20, 60]);
  });

  it("puts a decade beside a decade on a logarithmic axis", () => {
    expect([10, 1, 0.1, 1e-4, 1e-9, 0].map((value) => Math.round(logHeight(value, 10, 100)))).toEqual([100, 80, 60, 0, 0, 0]);
  });

  it("tears a few outliers rather than flatten all others", () => {
    const steps = [1.5, ...Array.from({ length: 29 }, (_, i) => 0.1 + i / 1000)];
    expect(axisTop(steps)).toBeCloseTo(0.15);
    expect(axisTop([1.5, 0.1])).toBe(1.5);
    expect(axisTop([0.3, 0.1, 0.1, 0.12, 0.1])).toBeCloseTo(0.3);
    expect(axisTop([])).toBe(1);
  });

  it("lets lanes share a row only if they do not overlap", () => {
    expect(packLanes([{ from: 0, to: 5 }, { from: 2, to: 9 }, { from: 7, to: 8 }])).toEqual([0, 1, 0]);
  });

  it("rounds an axis up", () => {
    expect([0.023, 0.7, 31, 1].map(niceCeiling).map((value) => Number(value.toPrecision(3)))).toEqual([0.025, 0.8, 40, 1]);
  });
});

describe("words", () => {
  it("says numbers as a person reads them", () => {
    expect([1, 2, 3, 4, 11, 12, 13, 21, 81, 112].map(ordinal)).toEqual(["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "81st", "112th"]);
    expect([0, 999, 1000, 1234567].map(grouped)).toEqual(["0", "999", "1,000", "1,234,567"]);
    expect([2.5, 0.25, 0.0123, 0.0000421, null].map(duration)).toEqual(["2.50 s", "250 ms", "12.3 ms", "42 µs", "–"]);
    expect(ranges([3, 4, 5, 9])).toBe("3–5 9");
    expect(shortId("cmpl-0123456789", 6)).toBe("…56789");
  });
});
