package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
)

// TestPrintResult: a count of prompts is told with their number, for people only.
func TestPrintResult(t *testing.T) {
	r := &jobv1.Result{Figures: map[string]float64{"lossless": 3, "prompts": 4}}
	for _, c := range []struct {
		json bool
		want string
	}{{false, `(?m)^lossless +3 of 4$`}, {true, `"lossless": 3,`}} {
		path := filepath.Join(t.TempDir(), "out")
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		command := newCLI(nil, out, nil)
		command.json = c.json
		if err := command.printResult(r); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || !regexp.MustCompile(c.want).Match(text) {
			t.Errorf("json %v: %s, %v", c.json, text, err)
		}
	}
}
