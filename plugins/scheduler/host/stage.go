package host

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// maxShebang bounds what is read of a script's first line, in bytes.
const maxShebang = 256

// maxFile bounds one file that runs, in bytes.
const maxFile = 1 << 30

// Sum gives a file's sha256 in hex.
func Sum(path string) (string, error) {
	in, err := os.Open(path)
	if err != nil {
		return "", runner.Errorf(runner.NotFound, "sum plugin file: %w", err)
	}
	defer in.Close()
	return sumTo(in, io.Discard)
}

// sumTo copies and gives the sha256 of just the bytes that it copied.
func sumTo(in io.Reader, out io.Writer) (string, error) {
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, h), io.LimitReader(in, maxFile+1))
	if err == nil && n > maxFile {
		err = errors.New("it is larger than 1 GiB")
	}
	if err != nil {
		return "", runner.Errorf(runner.Unavailable, "sum plugin file: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Verify checks every file of an entry, and starts nothing.
func Verify(e Entry) error {
	if err := e.check(); err != nil {
		return err
	}
	for _, f := range e.all() {
		path, err := trusted(f.Path)
		if err != nil {
			return err
		}
		got, err := Sum(path)
		if err != nil {
			return err
		}
		if got != f.SHA256 {
			return mismatch(f, got)
		}
	}
	return e.runsItself(e.Program.Path)
}

// runsItself refuses a script that names its interpreter in its own first line:
// the kernel would start a program that no sum covers. path is the program, or
// its checked copy.
func (e Entry) runsItself(path string) error {
	if e.Script() || e.Interpreter.Path != "" {
		return nil
	}
	in, err := os.Open(path)
	if err != nil {
		return runner.Errorf(runner.NotFound, "check plugin file: %w", err)
	}
	defer in.Close()
	line, err := bufio.NewReader(io.LimitReader(in, maxShebang)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return runner.Errorf(runner.Unavailable, "check plugin file %s: %w", e.Program.Path, err)
	}
	if !strings.HasPrefix(line, "#!") {
		return nil
	}
	return runner.Errorf(runner.Invalid, "check plugin file %s: want a program, or a script whose interpreter is pinned too, got a script that begins with %.80q", e.Program.Path, strings.TrimSpace(line)).
		WithHint("name the interpreter in the plugin's `interpreter` and `interpreter_sha256`; a Python script's name ends in .py, and it may go without")
}

func (e Entry) all() []File {
	all := append([]File{e.Program}, e.Files...)
	if e.Interpreter.Path != "" {
		all = append(all, e.Interpreter)
	}
	return all
}

func mismatch(f File, got string) error {
	return runner.Errorf(runner.Invalid, "check plugin file %s: want sha256 %s, got %s", f.Path, f.SHA256, got).
		WithHint("it changed since it was pinned: look at it, then `dflash-runner plugins pin -f` with the configuration's file")
}

// staged is a checked copy of a plugin's files.
type staged struct {
	argv  []string
	files []File // copies, and the interpreter
}

// stage copies the files that run into dir, hashing the very bytes that it
// writes, so that a later change of the source has no effect. An interpreter is
// hashed and runs in place: it finds its library by where it lies.
func stage(e Entry, dir string) (staged, error) {
	var s staged
	if err := e.check(); err != nil {
		return s, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return s, runner.Errorf(runner.Unavailable, "stage plugin: %w", err)
	}
	for _, f := range append([]File{e.Program}, e.Files...) {
		at, err := stageFile(f, dir)
		if err != nil {
			return s, err
		}
		s.files = append(s.files, File{at, f.SHA256})
	}
	if err := e.runsItself(s.files[0].Path); err != nil {
		return s, err
	}
	if e.Script() {
		files, err := stageSDK(dir)
		if err != nil {
			return s, err
		}
		s.files = append(s.files, files...)
	}
	if e.Interpreter.Path != "" {
		path, err := trusted(e.Interpreter.Path)
		if err != nil {
			return s, err
		}
		got, err := Sum(path)
		if err != nil {
			return s, err
		}
		if got != e.Interpreter.SHA256 {
			return s, mismatch(e.Interpreter, got)
		}
		s.argv = append([]string{e.Interpreter.Path}, e.InterpreterArgs...)
		s.files = append(s.files, e.Interpreter)
	}
	s.argv = append(append(s.argv, s.files[0].Path), e.Args...)
	return s, nil
}

func stageFile(f File, dir string) (at string, err error) {
	path, err := trusted(f.Path)
	if err != nil {
		return "", err
	}
	in, err := os.Open(path)
	if err != nil {
		return "", runner.Errorf(runner.NotFound, "stage plugin: %w", err)
	}
	defer in.Close()
	at = filepath.Join(dir, filepath.Base(f.Path))
	out, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o500)
	if err != nil {
		return "", runner.Errorf(runner.Unavailable, "stage plugin: %w", err)
	}
	got, err := sumTo(in, out)
	if err = errors.Join(err, out.Close()); err != nil {
		return "", err
	}
	if got != f.SHA256 {
		return "", mismatch(f, got)
	}
	return at, nil
}

// unchanged looks again at what will run, right before it does.
func (s staged) unchanged() error {
	for _, f := range s.files {
		got, err := Sum(f.Path)
		if err != nil {
			return err
		}
		if got != f.SHA256 {
			return runner.Errorf(runner.Invalid, "start plugin: %s changed between its check and its start: want sha256 %s, got %s", f.Path, f.SHA256, got)
		}
	}
	return nil
}
