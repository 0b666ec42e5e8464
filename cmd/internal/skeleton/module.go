package skeleton

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// modulePath is the module that holds the Go SDK.
const modulePath = "github.com/dflash-runner/dflash-runner"

// findSDK gives the clone that a plugin's go.mod is to name: the one that is
// asked for, or the one that this program was built from. It gives "" where the
// directory lies inside of a clone, so that the plugin is a package of it.
func findSDK(asked, directory string) (string, error) {
	if asked != "" {
		full, err := filepath.Abs(asked)
		if err != nil || !isClone(full) {
			return "", runner.Errorf(runner.Invalid, "make plugin: SDK: want a clone of %s, got %s", modulePath, asked)
		}
		return full, nil
	}
	for dir := filepath.Dir(directory); ; dir = filepath.Dir(dir) {
		if isClone(dir) {
			return "", nil
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if built := builtFrom(); isClone(built) {
		return built, nil
	}
	return "", runner.Errorf(runner.NotFound, "make plugin: want a clone of %s for the Go SDK, found none", modulePath).
		WithHint("name one with --sdk, or make the plugin inside of it")
}

// builtFrom is where this file was compiled, or no directory.
func builtFrom() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(file))))
}

func isClone(dir string) bool {
	if !filepath.IsAbs(dir) {
		return false
	}
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && slices.Contains(strings.Split(string(text), "\n"), "module "+modulePath)
}

// module makes the plugin a module of its own, where it needs to be one, and
// builds it.
func (m *Made) module(ctx context.Context) error {
	if m.SDK != "" {
		if err := m.goMod(); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", m.Program, ".")
	cmd.Dir = m.Directory
	if out, err := cmd.CombinedOutput(); err != nil {
		return runner.Errorf(runner.Unavailable, "make plugin: go build: %w: %.800s", err, strings.TrimSpace(string(out))).
			WithHint("a Go plugin needs Go's tools: https://go.dev/doc/install")
	}
	m.Files = append(m.Files, m.Program)
	return nil
}

// goMod writes a go.mod with the versions of the clone's, and its go.sum, so
// that the plugin builds against just what the SDK was tested with and nothing
// is fetched that the clone does not need too.
func (m *Made) goMod() error {
	text, err := os.ReadFile(filepath.Join(m.SDK, "go.mod"))
	if err != nil {
		return runner.Errorf(runner.Unavailable, "make plugin: %w", err)
	}
	sum, err := os.ReadFile(filepath.Join(m.SDK, "go.sum"))
	if err != nil {
		return runner.Errorf(runner.Unavailable, "make plugin: %w", err)
	}
	var b strings.Builder
	b.WriteString("module example.com/" + m.Name + "\n\n// Until a version is released the SDK is a clone's: then drop the replace line.\nrequire " +
		modulePath + " v0.0.0\n\nreplace " + modulePath + " => " + m.SDK + "\n")
	block := false
	for line := range strings.Lines(string(text)) {
		first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case first == "go", first == "toolchain", first == "require":
			b.WriteString("\n" + line)
			block = strings.HasSuffix(strings.TrimSpace(line), "(")
		case block:
			b.WriteString(line)
			block = first != ")"
		}
	}
	if err := m.write("go.mod", b.String()); err != nil {
		return err
	}
	return m.write("go.sum", string(sum))
}
