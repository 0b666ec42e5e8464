package simulate

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// marks are the causes' letters in a chart of text.
var marks = [causes]byte{Train: '#', Commit: 'c', Produce: '=', Sum: '+', Vote: '.', Turn: '.', NoRow: '.', NoSlot: '.', Nothing: '.'}

// Legend explains the letters of Gantt.
const Legend = "= a row made   # a row trained   + slower ranks and the sum   c commit   . nothing computed"

// Gantt writes the first node's workers from one moment to another, a line
// each, in so many columns. A column shows what took most of its time. The
// result must have a trail.
func (r Result) Gantt(w io.Writer, from, to time.Duration, columns int) error {
	if columns < 1 || to <= from {
		return nil
	}
	all := ordered(r.setup.Workers)
	lines := make([][][causes]time.Duration, len(all))
	for i := range lines {
		lines[i] = make([][causes]time.Duration, columns)
	}
	for _, s := range r.Spans {
		if s.Node == 0 {
			spread(lines[s.Worker], s, from, to)
		}
	}
	for i, line := range lines {
		text := make([]byte, columns)
		for c := range line {
			text[c] = most(line[c], (to-from)/time.Duration(columns))
		}
		if _, err := fmt.Fprintf(w, "%-11s %s %s\n", all[i].Worker, text, place(r.setup, all[i].Device)); err != nil {
			return err
		}
	}
	return nil
}

func place(s Setup, d int) string {
	if len(s.Turns) == 1 && s.Turns[0] > 1 {
		return "cpu"
	}
	return fmt.Sprintf("GPU %d", d)
}

// spread adds a span's time to the columns that it lies in.
func spread(line [][causes]time.Duration, s Span, from, to time.Duration) {
	width := (to - from) / time.Duration(len(line))
	if width == 0 {
		return
	}
	for c := max(0, int((s.From-from)/width)); c < len(line); c++ {
		a, b := from+width*time.Duration(c), from+width*time.Duration(c+1)
		if a >= s.To {
			return
		}
		line[c][s.Cause] += max(0, min(b, s.To)-max(a, s.From))
	}
}

// most gives the mark of what took most of a column, idle included.
func most(column [causes]time.Duration, width time.Duration) byte {
	mark, longest, sum := byte('.'), time.Duration(0), time.Duration(0)
	for _, t := range column {
		sum += t
	}
	if width-sum > 0 {
		longest = width - sum
	}
	for c, t := range column {
		if t > longest {
			mark, longest = marks[c], t
		}
	}
	return mark
}

// colours of the spans, apart in brightness too.
var colours = [causes]string{Train: "#1f5fa8", Commit: "#b3261e", Produce: "#e0a030", Sum: "#9a9a9a"}

// What an SVG chart is drawn with, in pixels.
const (
	svgWidth  = 1600
	svgLeft   = 110
	svgTop    = 44
	svgLine   = 22
	svgSpans  = 20_000 // at most; what comes later is left out, and said to be
	svgTicks  = 10
	svgBottom = 30
)

// SVG writes a chart of the first node's workers, over the whole run, as an
// image that stands alone. The result must have a trail.
func (r Result) SVG(w io.Writer) error {
	all := ordered(r.setup.Workers)
	end, spans, cut := r.window()
	var b strings.Builder
	height := svgTop + svgLine*len(all) + svgBottom
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" role="img">`+"\n", svgWidth, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n", escape(r.setup.Trace.Name))
	fmt.Fprintf(&b, `<text x="8" y="16">predicted, not measured: %s; node 1 of %d, %.3f s%s</text>`+"\n", escape(r.setup.Trace.Name), r.setup.Nodes, end.Seconds(), cut)
	at := svgLeft
	for _, c := range []Cause{Produce, Train, Sum, Commit} {
		fmt.Fprintf(&b, `<rect x="%d" y="24" width="12" height="12" fill="%s"/><text x="%d" y="35">%s</text>`+"\n", at, colours[c], at+16, c)
		at += 90
	}
	for i, x := range all {
		fmt.Fprintf(&b, `<text x="8" y="%d">%s</text>`+"\n", svgTop+svgLine*i+15, x.Worker)
	}
	scale := float64(svgWidth-svgLeft-10) / max(end.Seconds(), 1e-9)
	for _, s := range spans {
		fmt.Fprintf(&b, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"><title>%s%s, %.1f ms</title></rect>`+"\n", svgLeft+s.From.Seconds()*scale, svgTop+svgLine*s.Worker+2,
			max(0.2, (s.To-s.From).Seconds()*scale), svgLine-4, colours[s.Cause], s.Cause, rowText(s.Row), (s.To-s.From).Seconds()*1000)
	}
	for i := range svgTicks + 1 {
		t := end.Seconds() * float64(i) / svgTicks
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.2f s</text>`+"\n", svgLeft+t*scale, height-10, t)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// window gives the first node's spans that a chart holds, and up to when.
func (r Result) window() (end time.Duration, spans []Span, cut string) {
	end = r.Makespan
	for _, s := range r.Spans {
		if s.Node != 0 {
			continue
		}
		if len(spans) == svgSpans {
			return spans[len(spans)-1].From, spans, fmt.Sprintf(" of %.3f", r.Makespan.Seconds())
		}
		spans = append(spans, s)
	}
	return end, spans, ""
}

func rowText(row int) string {
	if row < 0 {
		return ""
	}
	return fmt.Sprintf(" row %d", row+1)
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}
