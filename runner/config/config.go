package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/dflash-runner/dflash-runner/configs"
	"github.com/dflash-runner/dflash-runner/runner"
)

// DefaultName is the embedded default's name in messages.
const DefaultName = "cpu-tiny.yaml"

// Load reads a configuration, applies the overrides ("path=value") in order and
// checks everything that can be known before anything is started, the target's
// own files included. An empty path means the embedded default. The error holds
// Problems, all of them.
func Load(path string, overrides []string) (*Config, error) {
	if path == "" {
		return parseAll(DefaultName, configs.CPUTiny(), overrides)
	}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, runner.Errorf(runner.Invalid, "read configuration %s: no such file", path).
			WithHint("without -f the embedded default runs; `dflash-runner config show > my.yaml` writes one to start from")
	case isDirectory(path):
		return nil, runner.Errorf(runner.Invalid, "read configuration %s: want a YAML file, got a directory", path).
			WithHint("name the file in it; a model's directory is named by target.directory, in the file")
	case err != nil:
		return nil, runner.Errorf(runner.Invalid, "read configuration %s: %w", path, err).WithHint("give a file that can be read")
	}
	return parseAll(path, text, overrides)
}

func isDirectory(path string) bool {
	s, err := os.Stat(path)
	return err == nil && s.IsDir()
}

// Default gives the embedded default, which a test proves to be valid.
func Default() *Config {
	c, err := Load("", nil)
	if err != nil {
		panic("config: embedded default: " + err.Error())
	}
	return c
}

// parseAll is Load after the file was read.
func parseAll(file string, text []byte, overrides []string) (*Config, error) {
	c, problems := parsed(file, text, overrides)
	for n := len(overrides) - 1; n >= 0 && slices.ContainsFunc(problems, func(p Problem) bool { return p.File == file }); n-- {
		_, before := parsed(file, text, overrides[:n])
		c.blame(problems, before, file, overrides[n])
	}
	return c, problems.err()
}

// blame gives problems of the file that were not there before a --set flag to
// that flag: a rule over several keys tells of the one that is too large, which
// need not be the one that was changed.
func (c *Config) blame(problems, before Problems, file, set string) {
	for i := range problems {
		p := &problems[i]
		if p.File != file || slices.ContainsFunc(before, func(b Problem) bool { return b.Path == p.Path && b.Message == p.Message }) {
			continue
		}
		if c != nil && p.Line > 0 && c.at[p.Path] == p.Place {
			p.Message += fmt.Sprintf("; %s stands at %s", p.Path, p.Place)
		}
		p.Place = Place{File: flagged(set)}
	}
}

// parsed gives what a file and some overrides come to, and every problem; no
// configuration where the file cannot be read.
func parsed(file string, text []byte, overrides []string) (*Config, Problems) {
	c := defaults()
	d := &decoder{file: file, at: places{"": {File: file}}}
	root, problem := parse(file, text)
	if problem != nil {
		return nil, Problems{*problem}
	}
	d.value(root, reflect.ValueOf(c).Elem(), "", "")
	d.at[""] = Place{File: file}
	if stop := d.unreadable(file); stop != nil {
		return nil, stop // rules of version 1 say nothing about it
	}
	for _, set := range overrides {
		d.override(c, set)
	}
	c.resolve()
	c.at = d.at
	if c.Run.Name == "" {
		c.Run.Name = nameFrom(file)
	}
	problems := append(d.problems, c.check(d.problems)...)
	if c.Target.Directory != "" {
		problems = append(problems, c.checkTarget(c.Target.Directory, problems)...)
	}
	return c, problems
}

// unreadable gives the problems of a file that is no mapping or another version.
func (d *decoder) unreadable(file string) Problems {
	for _, p := range d.problems {
		if p.Path == "" || p.Path == "version" {
			return Problems{p}
		}
	}
	if _, ok := d.at["version"]; !ok {
		return append(d.problems, Problem{Place: Place{file, 1, 1}, Path: "version", Message: "want version: 1, got none", Hint: "add the line `version: 1`"})
	}
	return nil
}

var notInName = regexp.MustCompile(`[^a-z0-9._-]+`)

// nameFrom makes a run's name of a file's.
func nameFrom(file string) string {
	base := strings.ToLower(filepath.Base(file))
	base = strings.TrimSuffix(strings.TrimSuffix(base, ".yaml"), ".yml")
	base = strings.Trim(notInName.ReplaceAllString(base, "-"), "-._")
	if base == "" {
		return "run"
	}
	return base[:min(len(base), maxName)]
}

// YAML gives the resolved configuration: every key, in the order of sections.go.
// Loading it again gives an equal configuration.
func (c *Config) YAML() ([]byte, error) {
	text, err := yaml.MarshalWithOptions(c, yaml.IndentSequence(true), yaml.CustomMarshaler(pointed))
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "write configuration: %w", err)
	}
	return text, nil
}

// pointed writes a number with a point in it: many readers of YAML take 1e-08 for
// a text.
func pointed(f float64) ([]byte, error) {
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if strings.Contains(text, ".") {
		return []byte(text), nil
	}
	whole, exponent, found := strings.Cut(text, "e")
	if found {
		exponent = "e" + exponent
	}
	return []byte(whole + ".0" + exponent), nil
}

// Problem is what a later check found wrong with a path.
func (c *Config) Problem(path string, err error) Problem {
	return Problem{Place: c.at.of(path), Path: path, Message: err.Error(), Hint: runner.HintOf(err)}
}

// Place says where a path was written, for messages of later checks.
func (c *Config) Place(path string) string { return c.at.of(path).String() }
