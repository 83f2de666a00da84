// Streams over time: a canvas with zoom and names under the pointer.

class StreamChart {
  static kRow = 40;
  static kTop = 24;
  static kLeft = 136;
  static kColours = ['#3a9d6e', '#e08a1e', '#7a5bc7', '#b9c2cc'];  // By class: kernel, collective, copy, other.

  constructor(canvas) {
    this.canvas = canvas;
    this.whole();
    canvas.onwheel = e => { e.preventDefault(); this.zoom(e.deltaY > 0 ? 1.25 : 0.8, this.time_at(e)); };
    canvas.ondblclick = () => this.whole();
    canvas.onmousedown = e => this.drag = {x: e.offsetX, from: this.from};
    canvas.onmousemove = e => this.drag ? this.move(e) : this.point(e);
    canvas.onmouseleave = () => this.hide();
    window.addEventListener('mouseup', () => this.drag = null);
    window.addEventListener('resize', () => this.paint());
    const middle = () => (this.from + this.to) / 2;
    document.getElementById('zoom-in').onclick = () => this.zoom(0.5, middle());
    document.getElementById('zoom-out').onclick = () => this.zoom(2, middle());
    document.getElementById('zoom-all').onclick = () => this.whole();
  }

  width() { return this.canvas.clientWidth - StreamChart.kLeft - 6; }
  x(time) { return StreamChart.kLeft + (time - this.from) / (this.to - this.from) * this.width(); }
  time_at(event) { return this.from + (event.offsetX - StreamChart.kLeft) / this.width() * (this.to - this.from); }

  whole() { this.show(DATA.begin, DATA.end); }
  zoom(factor, centre) {
    const span = Math.min(DATA.end - DATA.begin, (this.to - this.from) * factor);
    this.show_span(centre - (centre - this.from) / (this.to - this.from) * span, span);
  }
  move(event) {
    const span = this.to - this.from;
    this.show_span(this.drag.from - (event.offsetX - this.drag.x) / this.width() * span, span);
  }
  show_span(from, span) {
    const begin = Math.max(DATA.begin, Math.min(DATA.end - span, from));
    this.show(begin, begin + span);
  }
  show(from, to) {
    this.from = from;
    this.to = to;
    this.paint();
  }

  paint() {
    const {kRow, kTop} = StreamChart, ratio = devicePixelRatio || 1;
    const width = this.canvas.clientWidth, height = kTop + DATA.streams.length * kRow + 8;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.height = height + 'px';
    const g = this.canvas.getContext('2d');
    g.scale(ratio, ratio);
    g.font = '12px system-ui, sans-serif';
    DATA.streams.forEach((name, i) => {
      g.fillStyle = i % 2 ? '#fff' : '#f3f6f8';
      g.fillRect(0, kTop + i * kRow, width, kRow);
      g.fillStyle = '#1c2733';
      g.fillText(name, 6, kTop + i * kRow + kRow / 2 + 4);
    });
    this.paint_axis(g);
    this.paint_spans(g, width);
  }
  paint_axis(g) {
    const at = ticks(this.from - DATA.begin, this.to - DATA.begin, 8);
    for (const t of at) {
      const x = this.x(t + DATA.begin);
      g.fillStyle = '#dfe5eb';
      g.fillRect(x, StreamChart.kTop, 1, DATA.streams.length * StreamChart.kRow);
      g.fillStyle = '#5d6b7a';
      g.fillText(tick_time(t, at), x + 3, 14);
    }
  }
  paint_spans(g, width) {
    const {kRow, kTop, kLeft, kColours} = StreamChart, last = DATA.streams.map(() => -1);
    for (const [row, start, end, kind, title] of DATA.spans) {
      if (end < this.from || start > this.to) continue;
      const x0 = Math.max(kLeft, this.x(start)), x1 = Math.max(x0 + 0.6, Math.min(width, this.x(end)));
      if (x1 - last[row] < 0.5) continue;  // Less than half a pixel beyond what is painted.
      last[row] = x1;
      const y = kTop + row * kRow + 5;
      g.fillStyle = kColours[kind === 1 ? 1 : kind === 2 ? 2 : kind === 3 ? 3 : 0];
      g.fillRect(x0, y, x1 - x0, kRow - 10);
      if (x1 - x0 > 60) this.paint_title(g, DATA.titles[title], x0, y, x1 - x0);
    }
  }
  paint_title(g, title, x, y, width) {
    g.save();
    g.beginPath();
    g.rect(x, y, width - 3, StreamChart.kRow);
    g.clip();
    g.fillStyle = '#fff';
    g.fillText(title, x + 4, y + StreamChart.kRow / 2);
    g.restore();
  }

  point(event) {
    const row = Math.floor((event.offsetY - StreamChart.kTop) / StreamChart.kRow), time = this.time_at(event);
    const span = DATA.spans.find(s => s[0] === row && s[1] <= time && time <= s[2]);
    if (!span) return this.hide();
    const tip = document.getElementById('tip');
    tip.style.display = 'block';
    tip.textContent = `${DATA.titles[span[4]]}: ${duration(span[2] - span[1])} from ${duration(span[1] - DATA.begin)}`;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - 430) + 'px';
    tip.style.top = event.clientY + 14 + 'px';
  }
  hide() { document.getElementById('tip').style.display = 'none'; }
}

if (document.getElementById('streams')) new StreamChart(document.getElementById('streams'));
