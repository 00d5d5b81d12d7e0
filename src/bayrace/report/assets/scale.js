/* Numbers as text, and scales: functions from data to pixels that know their ticks. */
"use strict";
const BayraceScale = (() => {
  /* Numbers */

  function format(value) {
    if (value === null || value === undefined || !isFinite(value)) return "–";
    if (value === 0) return "0";
    const size = Math.floor(Math.log10(Math.abs(value)));
    const text = size >= 6 || size < -4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
    return text.replace("-", "−");
  }

  const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

  function power(value) {
    const exponent = Math.floor(Math.log10(value) + 1e-9);
    const front = Math.round(value / 10 ** exponent);
    const raised = [...String(exponent)].map((digit) => RAISED[digit]).join("");
    return (front === 1 ? "" : front + "·") + "10" + raised;
  }

  /* Scales: a function from data to pixels, with its ticks */

  function linear([low, high], [from, to], wanted, least = 0) {
    const scale = (value) => from + ((value - low) / (high - low)) * (to - from);
    const rough = Math.max(least, (high - low) / Math.max(1, wanted));
    const base = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((each) => each * base >= rough * 0.999) * base;
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    scale.ticks = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) {
      const value = n * step;
      scale.ticks.push([value, value.toFixed(Math.min(digits, 8)).replace(/^-/, "−").replace(/^−(0\.?0*)$/, "$1")]);
    }
    return scale;
  }

  const FRONTS = [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]];

  function logarithmic([low, high], [from, to], wanted) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const scale = (value) => from + ((Math.log10(value) - a) / (b - a)) * (to - from);
    const count = (fronts) => fronts.reduce((sum, front) => sum + Math.max(0, Math.floor(b - Math.log10(front)) - Math.ceil(a - Math.log10(front)) + 1), 0);
    const fronts = FRONTS.find((each) => count(each) <= Math.max(3, wanted)) || [1];
    const every = Math.max(1, Math.ceil((b - a) / Math.max(2, wanted)));
    scale.ticks = [];
    scale.minor = [];
    for (let n = Math.floor(a); n <= b; n++) {
      for (const front of [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]) {
        const value = front * 10 ** n;
        if (value < low * 0.9999 || value > high * 1.0001) continue;
        if (fronts.includes(front) && n % every === 0) {
          const plain = value >= 1e-3 && value < 1e5;
          scale.ticks.push([value, plain ? String(Number(value.toPrecision(2))) : power(value)]);
        } else if (front !== 1.5) scale.minor.push(value);
      }
    }
    if (scale.ticks.length < 2) {
      const ends = linear([low, high], [from, to], Math.min(wanted, 4));
      scale.ticks = ends.ticks.filter(([value]) => value > 0);
    }
    return scale;
  }

  function limits(panel, axis, name) {
    let [low, high] = [Infinity, -Infinity];
    const keys = name === "x" ? ["x"] : ["y", "low", "high"];
    for (const mark of panel.marks) {
      if (mark.fit === false) continue;
      const own = mark.kind === "columns" ? (name === "x" ? ["y"] : []) : keys;
      for (const key of own) {
        for (const value of mark[key] || []) {
          if (value === null || (axis.scale === "log" && value <= 0)) continue;
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      }
    }
    if (!isFinite(low)) [low, high] = axis.scale === "log" ? [0.1, 10] : [0, 1];
    if (axis.scale === "log") {
      const margin = low === high ? 2 : (high / low) ** 0.04;
      [low, high] = [low / margin, high * margin];
    } else {
      const margin = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.05;
      [low, high] = [low - margin, high + margin];
    }
    return [axis.low === null ? low : axis.low, axis.high === null ? high : axis.high];
  }

  function scaleOf(axis) {
    if (axis.scale === "log") return logarithmic;
    return (ends, pixels, wanted) => linear(ends, pixels, wanted, axis.whole ? 1 : 0);
  }

  return { format, limits, scaleOf };
})();
