package config

import (
	"strings"
	"testing"
	"time"
)

// TestCounts: a count is a number or auto, written so and read again.
func TestCounts(t *testing.T) {
	c, err := parseAll("f.yaml", []byte(strings.Replace(valid, "{drafters: 2}", "{targets: auto, drafters: auto}", 1)+"costs: {target_row: 93ms, drafter_row: 138ms}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Workers.Targets != Auto || c.Workers.Drafters != Auto || c.Costs.TargetRow.D() != 93*time.Millisecond || c.Scheduler.Use != Balanced {
		t.Errorf("got %+v, %+v", c.Workers, c.Costs)
	}
	sameAfterRoundTrip(t, c)
	text, err := c.YAML()
	if err != nil || !strings.Contains(string(text), "targets: auto\n") {
		t.Errorf("got %s, %v", text, err)
	}
	c.Workers.Targets = 3
	if text, err = c.YAML(); err != nil || !strings.Contains(string(text), "targets: 3\n") {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestCountProblems(t *testing.T) {
	for set, says := range map[string]string{
		"workers.targets=257":      "workers.targets: want at most 256, got 257",
		"workers.targets=many":     `workers.targets: want a whole number, or auto, got "many"`,
		"workers.targets=[1]":      "workers.targets: want a whole number, or auto, got a list",
		"workers.drafters=-1":      "workers.drafters: want at least 1, or auto, got -1",
		"costs.target_row=1ms":     "costs.target_row: want target_row and drafter_row together, got one of them",
		"costs.update=2":           "costs.update: want a duration",
		"training.rows_per_step=5": "training.rows_per_step: want a multiple of the 2 drafters, got 5",
	} {
		if _, err := parseAll("f.yaml", []byte(valid), []string{set}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: want %q, got %v", set, says, err)
		}
	}
	if _, err := parseAll("f.yaml", []byte(valid), []string{"scheduler.use=fixed", "workers.targets=auto"}); err == nil || !strings.Contains(err.Error(), "scheduler.use: want balanced or a plugin where workers.targets or workers.drafters is auto, got fixed") {
		t.Errorf("got %v", err)
	}
	if _, err := parseAll("f.yaml", []byte(valid), []string{"costs.from=x.json", "costs.update=1ms"}); err == nil || !strings.Contains(err.Error(), "costs.from: want a file or costs of their own, got both") {
		t.Errorf("got %v", err)
	}
	if _, err := parseAll("f.yaml", []byte(valid), []string{"workers.drafters=auto", "training.rows_per_step=5"}); err != nil {
		t.Errorf("counts that are not known yet: got %v", err)
	}
}
