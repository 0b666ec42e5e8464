package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Scheduler says who decides what a run leaves open: the order of samples, and
// which free target makes a row.
type Scheduler struct {
	// Use names who decides: balanced and fixed are built in, any other name is an entry of plugins. balanced chooses what workers leaves to it by costs and memory; fixed takes the configuration as it stands. Default balanced.
	Use string `yaml:"use"`
	// Required ends the run, before any worker is started, where the plugin cannot be used; false: the built-in goes on alone, and the run is degraded. Default false.
	Required string `yaml:"required" enum:"false|true"`
	// Deadline of one question to a plugin; then the built-in answers. Default 1s.
	Deadline Duration `yaml:"deadline" min:"1ms"`
	// Start is how long a plugin's process may take to its handshake. Default 10s.
	Start Duration `yaml:"start" min:"10ms"`
	// Pool is how many samples a plugin chooses the next ones from: the first of an epoch, in the built-in's order, that were not given yet. At least four times as many as it is to give, and at most 262144. Default 1024.
	Pool int `yaml:"pool" min:"1" max:"262144"`
	// Strikes in a row that end a plugin; a good answer takes one back. Default 3.
	Strikes int `yaml:"strikes" min:"1" max:"1000"`
	// BackoffMin is how long a plugin rests after its first end; every end doubles it. Default 5s.
	BackoffMin Duration `yaml:"backoff_min" min:"1ms"`
	// BackoffMax is the longest rest. Default 5m.
	BackoffMax Duration `yaml:"backoff_max" min:"1ms"`
	// Limits of what a plugin's process may hold: one that holds more is ended, as for its strikes.
	Limits SchedulerLimits `yaml:"limits"`
	// Plugins is the catalog: nothing that it does not name is started. Default empty.
	Plugins []Plugin `yaml:"plugins"`
}

// SchedulerLimits bounds what a plugin's process holds. A run looks every five
// seconds.
type SchedulerLimits struct {
	// Memory that is resident. Default 8GiB.
	Memory Size `yaml:"memory"`
	// Tasks are a plugin's goroutines, as one in Go tells them, and its threads, each counted by itself. Default 10000.
	Tasks int `yaml:"tasks" min:"100"`
}

// Plugin is a scheduling plugin.
type Plugin struct {
	// Name of the plugin, as it calls itself: a-z, 0-9 and dash.
	Name string `yaml:"name"`
	// Path of the program, or of a script; relative to the working directory. A name that ends in .py is a Python script: the SDK is put beside it.
	Path string `yaml:"path"`
	// SHA256 of that file, in hex; `dflash-runner plugins describe PATH` prints it.
	SHA256 string `yaml:"sha256"`
	// Interpreter that runs the script, by its path; empty: the program runs itself, and a Python script with the workers' Python.
	Interpreter string `yaml:"interpreter"`
	// InterpreterSHA256 is the interpreter's; may be left out where a Python script has the workers'.
	InterpreterSHA256 string `yaml:"interpreter_sha256"`
	// InterpreterArgs stand before the script; a Python script's default is -E -s -B.
	InterpreterArgs []string `yaml:"interpreter_args"`
	// Args of the program.
	Args []string `yaml:"args"`
	// Files that the program reads as code: they are put beside it.
	Files []PluginFile `yaml:"files"`
	// Env names the variables that the program sees; it sees no other.
	Env []string `yaml:"env"`
	// Config is the plugin's own; `dflash-runner plugins describe NAME` shows its keys.
	Config map[string]any `yaml:"config"`
}

// PluginFile is a file that runs as part of a plugin.
type PluginFile struct {
	// Path of the file; relative to the working directory.
	Path string `yaml:"path"`
	// SHA256 of the file, in hex.
	SHA256 string `yaml:"sha256"`
}

// The schedulers that are no plugins. A plugin that places nothing has balanced
// beside it.
const (
	Balanced = "balanced"
	Fixed    = "fixed"
)

// leastMemory is what a Python plugin takes that does nothing, and more.
const leastMemory Size = 128 << 20

// builtins are their names.
var builtins = []string{Balanced, Fixed}

// Plugin gives the entry that scheduler.use names, and its place in the
// catalog; nil for a built-in.
func (s *Scheduler) Plugin() (*Plugin, int) {
	for i := range s.Plugins {
		if s.Plugins[i].Name == s.Use && !contains(builtins, s.Use) {
			return &s.Plugins[i], i
		}
	}
	return nil, -1
}

var (
	pluginName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
	sha256Rule = regexp.MustCompile(`^[0-9a-f]{64}$`)
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// scheduler checks the catalog, and that who decides is in it.
func (k *checker) scheduler() {
	s := &k.Scheduler
	names := slices.Clone(builtins)
	for i := range s.Plugins {
		at := fmt.Sprintf("scheduler.plugins[%d]", i)
		k.plugin(&s.Plugins[i], at, names)
		if !contains(names, s.Plugins[i].Name) { // a name that is taken was told above
			names = append(names, s.Plugins[i].Name)
		}
	}
	if !contains(names, s.Use) {
		hint := "known: " + strings.Join(names, ", ")
		if near := suggest(s.Use, names); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		k.add("scheduler.use", hint, "want %s, or the name of a plugin in scheduler.plugins, got %q", strings.Join(builtins, ", "), clip(s.Use))
	}
	if s.Limits.Memory < leastMemory {
		k.add("scheduler.limits.memory", "", "want at least %s, got %s", leastMemory, s.Limits.Memory)
	}
	if s.BackoffMin > s.BackoffMax {
		k.add("scheduler.backoff_max", "", "want at least backoff_min %s, got %s", s.BackoffMin, s.BackoffMax)
	}
}

func (k *checker) plugin(p *Plugin, at string, before []string) {
	switch {
	case !pluginName.MatchString(p.Name):
		k.add(at+".name", "", "want at most 64 of a-z, 0-9 and '-', beginning with a letter or digit, got %q", clip(p.Name))
	case contains(before, p.Name):
		k.add(at+".name", "", "want each name once, got %q again", p.Name)
	}
	k.pinned(at+".path", p.Path, at+".sha256", p.SHA256)
	switch borrows := strings.HasSuffix(p.Path, ".py") && p.Interpreter == ""; {
	case borrows && p.InterpreterSHA256 != "":
		k.sum(at+".interpreter_sha256", p.InterpreterSHA256)
	case !borrows && (p.Interpreter != "" || p.InterpreterSHA256 != "" || len(p.InterpreterArgs) > 0):
		k.pinned(at+".interpreter", p.Interpreter, at+".interpreter_sha256", p.InterpreterSHA256)
	}
	for i, f := range p.Files {
		k.pinned(fmt.Sprintf("%s.files[%d].path", at, i), f.Path, fmt.Sprintf("%s.files[%d].sha256", at, i), f.SHA256)
	}
	for i, name := range p.Env {
		if !envName.MatchString(name) || strings.HasPrefix(name, "PLUGIN_") || strings.HasPrefix(name, "DFLASH_") {
			k.add(fmt.Sprintf("%s.env[%d]", at, i), "", "want the name of a variable, not PLUGIN_* or DFLASH_*, got %q", clip(name))
		}
	}
}

// pinned checks a file and its sum, each at its own line.
func (k *checker) pinned(at, path, sumAt, sum string) {
	if path == "" {
		k.add(at, "", "want a file, got nothing")
	}
	k.sum(sumAt, sum)
}

func (k *checker) sum(sumAt, sum string) {
	if !sha256Rule.MatchString(sum) {
		k.add(sumAt, "`dflash-runner plugins describe PATH` prints it; `sha256sum` does too", "want a sha256 in 64 hex digits, got %q", clip(sum))
	}
}
