package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// record is a line of `journal show --json`, with the fields that tests look at.
type record struct {
	Number uint64 `json:"number"`
	Type   string `json:"type"`
	Record struct {
		Step    int    `json:"step"`
		Lineage int    `json:"lineage"`
		Row     uint64 `json:"row"`
		Reason  string `json:"reason"`
		Code    int    `json:"code"`
		Chain   string `json:"chain"`
		Weight  uint32 `json:"weight"`
		Norm    uint32 `json:"norm"`
		What    string `json:"what"`
		Name    string `json:"name"`

		Samples []int `json:"samples"`

		Rows json.RawMessage `json:"rows"`

		Prompts     uint32  `json:"prompts"`
		Tokens      uint64  `json:"tokens"`
		Forwards    uint64  `json:"forwards"`
		Lossless    bool    `json:"lossless"`
		Numerator   float64 `json:"numerator"`
		Denominator float64 `json:"denominator"`
		Looping     uint32  `json:"looping"`
	} `json:"record"`
}

// journal reads a run's journal through the command.
func (h *home) journal(run string) (records []record) {
	h.t.Helper()
	out := h.must(0, "journal", "show", run, "--json").out
	for line := range strings.Lines(out) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			h.t.Fatalf("journal show: %v\n%s", err, line)
		}
		records = append(records, r)
	}
	return records
}

// hex writes a float by its bits.
func hex(f float64) string { return strconv.FormatFloat(f, 'x', -1, 64) }

// bits writes a commit by its bits, whatever the lineage.
func (r record) bits(t *testing.T) string {
	t.Helper()
	var rows []struct {
		Row         uint64  `json:"row"`
		Numerator   float64 `json:"numerator"`
		Denominator float64 `json:"denominator"`
	}
	if err := json.Unmarshal(r.Record.Rows, &rows); err != nil {
		t.Fatalf("commit of step %d: %v", r.Record.Step, err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "weight %08x norm %08x chain %s", r.Record.Weight, r.Record.Norm, r.Record.Chain)
	for _, row := range rows {
		fmt.Fprintf(&b, " row %d %s/%s", row.Row, hex(row.Numerator), hex(row.Denominator))
	}
	return b.String()
}

// history is what survives of a journal, each entry by its bits.
type history struct {
	commits     map[int]string    // by step
	evaluations map[string]string // by step and question, times left out
	last        int
}

// survivors follows commits and evaluations through the restores.
func survivors(t *testing.T, records []record) history {
	t.Helper()
	h := history{commits: map[int]string{}, evaluations: map[string]string{}}
	steps := map[string]int{}
	for _, r := range records {
		v := r.Record
		switch r.Type {
		case "commit":
			h.commits[v.Step], h.last = r.bits(t), v.Step
		case "restore":
			for n := v.Step + 1; n <= h.last; n++ {
				delete(h.commits, n)
			}
			for key, at := range steps {
				if at > v.Step {
					delete(h.evaluations, key)
					delete(steps, key)
				}
			}
			h.last = v.Step
		case "evaluation":
			key := fmt.Sprintf("%s at step %d", v.What, v.Step)
			steps[key] = v.Step
			h.evaluations[key] = fmt.Sprintf("prompts %d tokens %d forwards %d lossless %v looping %d loss %s/%s",
				v.Prompts, v.Tokens, v.Forwards, v.Lossless, v.Looping, hex(v.Numerator), hex(v.Denominator))
		}
	}
	return h
}

// equal wants the same bits as another history, up to a step.
func (h history) equal(t *testing.T, want history, steps int) {
	t.Helper()
	for n := 1; n <= steps; n++ {
		if h.commits[n] == "" || h.commits[n] != want.commits[n] {
			t.Errorf("step %d: want the bits of the undisturbed run\n%s, got\n%s", n, want.commits[n], h.commits[n])
		}
	}
	for key, score := range want.evaluations {
		if got, ok := h.evaluations[key]; ok && got != score {
			t.Errorf("%s: want %s, got %s", key, score, got)
		}
	}
}

// count gives how many records are of a type.
func count(records []record, kind string) (n int) {
	for _, r := range records {
		if r.Type == kind {
			n++
		}
	}
	return n
}

// events reads what has been written of a run's events.
func (h *home) events(run string) (all []runner.Event) {
	f, err := os.Open(h.path(run, "events.jsonl"))
	if err != nil {
		return nil // not yet
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		var e runner.Event
		if json.Unmarshal(s.Bytes(), &e) == nil { // the last line may be half written
			all = append(all, e)
		}
	}
	return all
}

// named gives the events of a name.
func named(all []runner.Event, name string) (some []runner.Event) {
	for _, e := range all {
		if e.Name == name {
			some = append(some, e)
		}
	}
	return some
}
