package bench

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, c := range []struct {
		of   []int
		p    float64
		want int
	}{
		{hundred, 0.5, 50}, {hundred, 0.9, 90}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0, 1},
		{[]int{7}, 0.5, 7}, {[]int{7}, 1, 7}, {[]int{1, 2}, 0.5, 1}, {[]int{1, 2}, 0.51, 2}, {[]int{1, 2, 3}, 0.5, 2},
	} {
		if got := quantile(c.of, c.p); got != c.want {
			t.Errorf("quantile %v of %d samples: got %d, want %d", c.p, len(c.of), got, c.want)
		}
	}
}

func TestLatencies(t *testing.T) {
	r := start("x")
	// not sorted, and left so
	samples := []time.Duration{40 * time.Microsecond, 10 * time.Microsecond, 1500 * time.Nanosecond, 20 * time.Microsecond}
	base := []time.Duration{5 * time.Microsecond}
	r.latencies("order", samples, base, map[string]*Goal{"p50": atMost(10), "p99": atMost(39)})
	want := []struct {
		name         string
		value, ratio float64
		met          string
	}{{"order p10", 1.5, 0.3, ""}, {"order p50", 10, 2, "true"}, {"order p90", 40, 8, ""}, {"order p99", 40, 8, "false"}, {"order max", 40, 8, ""}}
	for i, w := range want {
		f := r.Figures[i]
		met := ""
		if f.Met != nil {
			met = map[bool]string{true: "true", false: "false"}[*f.Met]
		}
		if f.Name != w.name || f.Value != w.value || *f.Ratio != w.ratio || met != w.met {
			t.Errorf("got %+v, ratio %v, met %q; want %+v", f, *f.Ratio, met, w)
		}
	}
	if samples[0] != 40*time.Microsecond {
		t.Error("the samples were sorted in place")
	}
}

func TestRatioGoals(t *testing.T) {
	r := start("x")
	r.add("copy", 3, "GB/s", 0.91, ratioAtLeast(0.9))
	r.add("copy", 3, "GB/s", 0.89, ratioAtLeast(0.9))
	if !*r.Figures[0].Met || *r.Figures[1].Met {
		t.Errorf("got %v and %v, want the first met alone", *r.Figures[0].Met, *r.Figures[1].Met)
	}
}

func TestTableAndJSON(t *testing.T) {
	r := start("x")
	r.Versions, r.Torch, r.Commit = map[string]string{"python": "3.12", "go": "go1.25"}, "2.11.0", "abc"
	r.Facts["row"] = "96 MiB"
	r.Cores, r.Load = 2, [2]float64{0.5, 1.25}
	r.add("order p50", 83.456, "us", 2.5, atMost(100))
	r.add("order p99", 1234.5, "us", 0, atMost(1000))
	r.add("copy", 9, "GB/s", 0.95, ratioAtLeast(0.9))
	r.add("plain", 9.5, "GB/s", 0, nil)
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"figure     measured  unit  ratio  goal",
		"order p50  83.5      us    2.50   <= 100  met",
		"order p99  1234      us           <= 1000  MISSED",
		"copy       9         GB/s  0.95   ratio >= 0.9  met",
		"plain      9.5       GB/s",
		"row 96 MiB, go go1.25, python 3.12, torch 2.11.0, commit abc; on cpu, 2 cores, load 0.50 before and 1.25 after",
	}
	got := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	for i := range want {
		if i >= len(got) || strings.TrimRight(got[i], " ") != want[i] {
			t.Fatalf("line %d: got\n%s\nwant\n%s", i+1, b.String(), strings.Join(want, "\n"))
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"bench":"x"`, `"name":"plain","value":9.5,"unit":"GB/s","ratio":null,"goal":null,"met":null`,
		`"goal":{"limit":0.9,"at_least":true,"of_ratio":true},"met":true`, `"load":[0.5,1.25]`,
		`{"bench":"x","commit":"abc","device":"cpu","torch":"2.11.0","versions":{"go":"go1.25","python":"3.12"},"shape":null,"facts":{"row":"96 MiB"},"cores":2,`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("got %s, want %s in it", text, part)
		}
	}
}
