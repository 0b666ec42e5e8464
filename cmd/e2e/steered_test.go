package e2e

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// toldLine is what the Python example prints of a source that it was asked about.
var toldLine = regexp.MustCompile(`^  ".*/(\w+)\.jsonl": loss (\S+), samples (\d+), share (\S+)$`)

// told is a source in a question, by its file's name.
type told struct{ loss, samples, share float64 }

// questions reads the log of the Python example.
func questions(t *testing.T, path string) (all []map[string]told) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if line == "arrange:" {
			all = append(all, map[string]told{})
		}
		if m := toldLine.FindStringSubmatch(line); m != nil && len(all) > 0 {
			number := func(s string) float64 {
				x, err := strconv.ParseFloat(s, 64)
				if err != nil {
					return math.NaN() // None
				}
				return x
			}
			all[len(all)-1][m[1]] = told{number(m[2]), number(m[3]), number(m[4])}
		}
	}
	return all
}

// followsLosses wants the plugin told of both files' losses, and every order as
// it is to be: the file with the greater loss has more of it than its half.
// fromTrain says which file a sample is of.
func (h *home) followsLosses(run string, journal []record, fromTrain func(int) bool) {
	t := h.t
	t.Helper()
	asked := questions(t, filepath.Join(h.dir, "runs", run, "logs", "scheduler-steer-by-loss.1.log"))
	var orders [][]int
	for _, r := range journal {
		if r.Type == "arranged" {
			orders = append(orders, r.Record.Samples)
		}
	}
	if len(asked) != len(orders) {
		t.Fatalf("want a question for each of %d orders, got %d: %v", len(orders), len(asked), asked)
	}
	known, steered := 0, 0
	for i, q := range asked {
		train, alike := q["train"], q["alike"]
		places, got := float64(len(orders[i])), 0.0
		for _, s := range orders[i] {
			if fromTrain(s) {
				got++
			}
		}
		if want := places * train.share / (train.share + alike.share); !(math.Abs(got-want) < 1) {
			t.Errorf("question %d: want about %.2f of %g samples of train, got %g: %+v", i, want, places, got, q)
		}
		if math.IsNaN(train.loss) || math.IsNaN(alike.loss) {
			if train.share != train.samples || alike.share != alike.samples {
				t.Errorf("question %d: want no steering without losses, got %+v", i, q)
			}
			continue
		}
		known++
		if (train.loss > alike.loss) != (train.share/train.samples > alike.share/alike.samples) {
			t.Errorf("question %d: want more of the greater loss, got %+v", i, q)
		}
		if train.loss > alike.loss && got > places/2 || train.loss < alike.loss && got < places/2 {
			steered++
		}
	}
	if known == 0 || steered == 0 {
		t.Errorf("want losses told and an order that is not half and half, got %d and %d of %d questions: %v, %v", known, steered, len(asked), asked, orders)
	}
}
