package up

import (
	"path/filepath"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// absolute frees a configuration's paths from the working directory: workers
// and jobs have another one, and so may who resumes the run.
func absolute(c *config.Config) error {
	places := []*string{&c.Target.Directory, &c.Drafter.InitFrom, &c.Export.Directory, &c.WarmUp.CacheDirectory, &c.Costs.From}
	for _, files := range [][]string{c.Data.Files, c.Data.HeldoutFiles, c.Target.Embedded.Corpus.Files} {
		for i := range files {
			places = append(places, &files[i])
		}
	}
	for i := range c.Scheduler.Plugins {
		p := &c.Scheduler.Plugins[i]
		places = append(places, &p.Path, &p.Interpreter)
		for j := range p.Files {
			places = append(places, &p.Files[j].Path)
		}
	}
	if strings.ContainsRune(c.Python.Interpreter, filepath.Separator) { // a bare name is looked for on the path
		places = append(places, &c.Python.Interpreter)
	}
	for _, p := range places {
		if *p == "" {
			continue
		}
		path, err := filepath.Abs(*p)
		if err != nil {
			return runner.Errorf(runner.Unavailable, "find %s: %w", *p, err)
		}
		*p = path
	}
	return nil
}
