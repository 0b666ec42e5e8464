package simulate

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// charted is the run "apart" of TestByHand, 104 ms, with a trail.
func charted(t *testing.T) Result {
	t.Helper()
	r, err := Run(Setup{Trace: Trace{Format: Format, Name: "a <b> & c", Rows: rowsOf(10, 20), Costs: Costs{UpdateMS: 5, VoteMS: 1, HandOffMS: 2}},
		Nodes: 1, Slots: 2, Workers: lay([]int{0}, []int{1}), Turns: ones(2), RowsPerStep: 2, Steps: 2, Trail: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGantt(t *testing.T) {
	var b strings.Builder
	// Columns of 4 ms: made 0-40; trained 12-52, committed 53-58, trained 58-98, committed 99-104.
	if err := charted(t).Gantt(&b, 0, 104*time.Millisecond, 26); err != nil {
		t.Fatal(err)
	}
	want := "target/0    ==========................ GPU 0\ndrafter/0   ...##########cc##########c GPU 1\n"
	got := b.String()
	// 52-56: three of four are commit; 56-60 is halved; 96-100 is halved.
	if strings.Count(got, "=") != 10 || !strings.HasPrefix(got, want[:52]) || len(got) != len(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	b.Reset()
	if err := charted(t).Gantt(&b, time.Second, 0, 10); err != nil || b.Len() > 0 {
		t.Errorf("an empty window: got %q, %v", b.String(), err)
	}
}

func TestSVG(t *testing.T) {
	var b strings.Builder
	r := charted(t)
	if err := r.SVG(&b); err != nil {
		t.Fatal(err)
	}
	rects, d := 0, xml.NewDecoder(strings.NewReader(b.String()))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, b.String())
		}
		if s, ok := token.(xml.StartElement); ok && s.Name.Local == "rect" {
			rects++
		}
	}
	if want := 1 + 4 + len(r.Spans); rects != want { // ground, legend
		t.Errorf("got %d boxes, want %d", rects, want)
	}
	if !strings.Contains(b.String(), "predicted, not measured: a &lt;b&gt; &amp; c") {
		t.Errorf("got %s", b.String()[:600])
	}
}

func TestReport(t *testing.T) {
	r := charted(t).Report()
	if !r.Predicted || r.Rows != 4 || r.Steps != 2 || r.Targets != 1 || r.Drafters != 1 || r.Seconds != 0.104 || r.TokensPerS != 400/0.104 || r.Bound.Seconds > r.Seconds {
		t.Errorf("got %+v", r)
	}
	for _, w := range r.Workers {
		sum := 0.0
		for _, share := range w.Shares {
			sum += share
		}
		if sum < 0.999999 || sum > 1.000001 {
			t.Errorf("%s: shares add up to %g", w.Name, sum)
		}
	}
	text, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(text), `"name":"drafter/0","device":1`) {
		t.Errorf("got %s, %v", text, err)
	}
}
