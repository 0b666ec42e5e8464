// Package skeleton writes the beginning of a scheduling plugin: a directory that
// builds, keeps the contract and runs.
package skeleton

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/dflash-runner/dflash-runner/configs"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
)

//go:embed all:templates
var templates embed.FS

// Languages are those that plugins are begun in.
var Languages = []string{"go", "python"}

// reserved are names that a configuration's scheduler.use takes for something else.
var reserved = []string{"fixed", "balanced"}

var nameRule = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

// Request says what to write.
type Request struct {
	Language  string // one of Languages
	Name      string
	Directory string // to be made; empty: the name
	SDK       string // clone of this project, for a Go plugin outside of one; empty: searched for
}

// Made is what was written.
type Made struct {
	Name      string   `json:"name"`
	Language  string   `json:"language"`
	Directory string   `json:"directory"` // absolute
	Files     []string `json:"files"`     // in it
	Program   string   `json:"program"`   // file of them that a run starts
	SHA256    string   `json:"sha256"`    // of the program, as pinned in Config
	Config    string   `json:"config"`    // file of them that `up` runs
	SDK       string   `json:"sdk"`       // clone that a Go plugin's go.mod names; "" where none is needed
}

// Make writes a plugin's directory, builds what is to be built, and pins it.
// After an error nothing of it is left.
func Make(ctx context.Context, q Request) (m Made, err error) {
	if err := q.check(); err != nil {
		return m, err
	}
	if q.Directory == "" {
		q.Directory = q.Name
	}
	m = Made{Name: q.Name, Language: q.Language, Program: "plugin.py", Config: "run.yaml"}
	if m.Directory, err = filepath.Abs(q.Directory); err != nil {
		return m, runner.Errorf(runner.Invalid, "make plugin: %w", err)
	}
	if q.Language == "go" {
		m.Program = q.Name
		if m.SDK, err = findSDK(q.SDK, m.Directory); err != nil {
			return m, err
		}
	}
	if err := os.Mkdir(m.Directory, 0o755); err != nil {
		kind := runner.Unavailable
		if errors.Is(err, fs.ErrExist) {
			kind = runner.Invalid
		}
		return m, runner.Errorf(kind, "make plugin: %w", err).WithHint("the directory must not exist, and the one that it goes into must")
	}
	if err = m.fill(ctx); err != nil {
		_ = os.RemoveAll(m.Directory) // the first error is told
	}
	return m, err
}

func (q Request) check() error {
	switch {
	case !slices.Contains(Languages, q.Language):
		return runner.Errorf(runner.Invalid, "make plugin: language: want %s, got %q", strings.Join(Languages, " or "), q.Language)
	case len(q.Name) > 64 || !nameRule.MatchString(q.Name):
		return runner.Errorf(runner.Invalid, "make plugin: name: want at most 64 of a-z, 0-9 and single '-' between them, beginning with a letter, got %.80q", q.Name)
	case slices.Contains(reserved, q.Name):
		return runner.Errorf(runner.Invalid, "make plugin: name: %s is built in", q.Name).WithHint("choose another")
	}
	return nil
}

// fill writes the files into the directory that was made.
func (m *Made) fill(ctx context.Context) error {
	if err := m.render(m.Language); err != nil {
		return err
	}
	if m.Language == "go" {
		if err := m.module(ctx); err != nil {
			return err
		}
	}
	var err error
	if m.SHA256, err = host.Sum(filepath.Join(m.Directory, m.Program)); err != nil {
		return err
	}
	if err := m.render("both"); err != nil {
		return err
	}
	data, err := samples()
	for name, text := range data {
		err = errors.Join(err, m.write(name, text))
	}
	if err != nil {
		return err
	}
	slices.Sort(m.Files)
	return nil
}

// filled is what templates see.
type filled struct {
	Made
	Path, Base string // of the program in a configuration; of a run to begin with
}

// render writes every template of a folder.
func (m *Made) render(folder string) error {
	base := strings.TrimRight(strings.Replace(string(configs.CPUTest()), "name: cpu-test", "name: "+m.Name, 1), "\n") + "\n"
	base = dataSection.ReplaceAllLiteralString(base, ownData)
	all, err := template.ParseFS(templates, path.Join("templates", folder, "*.tmpl"))
	if err != nil {
		return runner.Errorf(runner.Internal, "make plugin: %w", err)
	}
	for _, t := range all.Templates() {
		name := strings.TrimSuffix(t.Name(), ".tmpl")
		if name == "gitignore" {
			name = ".gitignore"
		}
		var b strings.Builder
		if err := t.Execute(&b, filled{Made: *m, Path: "./" + m.Program, Base: base}); err != nil {
			return runner.Errorf(runner.Internal, "make plugin: %w", err)
		}
		if err := m.write(name, b.String()); err != nil {
			return err
		}
	}
	return nil
}

func (m *Made) write(name, text string) error {
	path := filepath.Join(m.Directory, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		return runner.Errorf(runner.Unavailable, "make plugin: %w", err)
	}
	m.Files = append(m.Files, name)
	return nil
}
