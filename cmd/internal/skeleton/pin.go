package skeleton

import (
	"os"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Pin is a file whose sha256 was written.
type Pin struct {
	Name   string `json:"name"` // of the plugin
	Path   string `json:"path"`
	Was    string `json:"was"`
	SHA256 string `json:"sha256"`
}

// Repin replaces sums in a configuration by others, at once, and changes nothing
// else of it.
func Repin(file string, sums map[string]string) error {
	info, err := os.Stat(file)
	if err != nil {
		return runner.Errorf(runner.NotFound, "pin plugins: %w", err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return runner.Errorf(runner.NotFound, "pin plugins: %w", err)
	}
	var pairs []string
	for was, now := range sums {
		pairs = append(pairs, was, now)
	}
	out := strings.NewReplacer(pairs...).Replace(string(text))
	if out == string(text) {
		return nil
	}
	if err := renameio.WriteFile(file, []byte(out), info.Mode().Perm()); err != nil {
		return runner.Errorf(runner.Unavailable, "pin plugins: %w", err)
	}
	return nil
}
