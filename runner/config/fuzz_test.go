package config

import (
	"errors"
	"testing"

	"github.com/dflash-runner/dflash-runner/configs"
	"github.com/dflash-runner/dflash-runner/runner"
)

// FuzzLoad: any text is refused with problems, or loads and comes back equal.
// target.directory is left out, for it reads files.
func FuzzLoad(f *testing.F) {
	f.Add(configs.CPUTiny(), "training.steps=3")
	f.Add(configs.CPUTest(), "run.name=x")
	f.Add([]byte(valid), "training.buckets=[1, 2]")
	f.Add([]byte("version: 1\nrun:\n\tx: 1\n"), "=")
	f.Add([]byte("? a\n: b\n"), "a.b.c=!!binary x")
	f.Add([]byte("version: !!int 1\nrun: &a {<<: *a}\n"), "run=null")
	f.Add([]byte("version: |\n  1\nrun: >-\n  {}\n- x"), "python.interpreter=")
	f.Fuzz(func(t *testing.T, text []byte, set string) {
		c, err := parseAll("f.yaml", text, []string{set, "target.directory=", "drafter.init_from="})
		var problems Problems
		switch {
		case err == nil:
			sameAfterRoundTrip(t, c)
		case !errors.As(err, &problems) || len(problems) == 0 || runner.KindOf(err) != runner.Invalid:
			t.Errorf("want problems of kind invalid, got %v", err)
		}
	})
}
