package pyenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/dflash-runner/dflash-runner/python"
	"github.com/dflash-runner/dflash-runner/runner"
)

func TestParseLock(t *testing.T) {
	for name, lock := range map[string][]byte{"requirements": python.Requirements, "compat": python.CompatRequirements, "installer": python.Installer} {
		r, err := ParseLock(lock)
		if err != nil || name == "requirements" && !slices.ContainsFunc(r, func(r Requirement) bool { return r.Name == "torch" && r.Version == "2.11.0" && !r.Marker }) {
			t.Errorf("%s: got %v, %v", name, r, err)
		}
		if s := string(lock); strings.Contains(s, "://") || strings.Contains(s, "-index") {
			t.Errorf("%s names an index", name)
		}
	}
	got, err := ParseLock([]byte("# c\nA_b.C==1.0+x ; sys_platform == 'linux' \\\n    --hash=sha256:00\n    # via d\n"))
	if err != nil || !slices.Equal(got, []Requirement{{"a-b-c", "1.0+x", true}}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "# only\n", "a>=1\n", "-r other\n", "--index-url x\n", "a==1\nb\n"} {
		if r, err := ParseLock([]byte(bad)); runner.KindOf(err) != runner.Invalid {
			t.Errorf("%q: got %v, %v", bad, r, err)
		}
	}
}

// fakePython is a script that answers the question as told.
func fakePython(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func says(version, more string) string {
	return fmt.Sprintf(`echo '{"executable":"x","prefix":"p","version":[%s],"name":"cpython","machine":"m","bits":64,"venv":true,"ensurepip":true,"packages":{}%s}'`, version, more)
}

func TestFindPython(t *testing.T) {
	for _, c := range []struct {
		name    string
		scripts map[string]string
		want    string // the script that is chosen, or part of the error
		hint    string
	}{
		{"the usual one", map[string]string{"python3": says("3,11,7", "")}, "python3", ""},
		{"too old, but a newer one beside it", map[string]string{"python3": says("3,9,2", ""), "python3.11": says("3,11,2", ""), "python3.12": says("3,12,1", "")}, "python3.12", ""},
		{"too new, but an older one beside it", map[string]string{"python3": says("3,15,0", ""), "python3.14": says("3,14,0", "")}, "python3.14", ""},
		{"one that does not run", map[string]string{"python3": "exit 127", "python3.13": says("3,13,0", "")}, "python3.13", ""},
		{"none", nil, "no python on the path", "apt install python3 python3-venv"},
		{"only too old", map[string]string{"python3": says("3,9,2", "")}, "is 3.9.2, too old", "Python 3.11 or newer"},
		{"only another implementation", map[string]string{"python3": says("3,11,2", `,"name":"pypy"`)}, "is pypy, want cpython", "3.11"},
		{"only without the GIL", map[string]string{"python3": says("3,14,0", `,"free_threaded":true`)}, "without the GIL", "3.11"},
		{"no ensurepip", map[string]string{"python3": says("3,11,2", `,"ensurepip":false`)}, "lacks the ensurepip module", "apt install python3.11-venv"},
		{"no Python at all", map[string]string{"python3": "echo hello"}, `does not answer like Python: "hello`, "3.11"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, script := range c.scripts {
				fakePython(t, dir, name, script)
			}
			i, err := findPython(t.Context(), dir, nil)
			if c.hint == "" {
				if err != nil || i.Path != filepath.Join(dir, c.want) {
					t.Errorf("got %q, %v", i.Path, err)
				}
				return
			}
			if runner.KindOf(err) != runner.NotFound || !strings.Contains(err.Error(), c.want) || !strings.Contains(runner.HintOf(err), c.hint) {
				t.Errorf("got %v, hint %q", err, runner.HintOf(err))
			}
		})
	}
}

func TestUseExistingRefuses(t *testing.T) {
	for _, c := range []struct {
		name, script, want string
		kind               runner.Kind
	}{
		{"missing packages", says("3,11,7", `,"packages":{"torch":"2.11.0"}`), "missing ", runner.NotFound},
		{"one of two versions", says("3,11,7", `,"packages":{"torch":"2.11.0"}`), "numpy 2.4.6 or 2.5.5,", runner.NotFound},
		{"not Python", "exit 0", `does not answer like Python: ""`, runner.Invalid},
		{"too old", says("3,10,1", ""), "is 3.10.1, too old", runner.Invalid},
		{"broken", "exit 3", "exit status 3", runner.Invalid},
		{"endless output", "yes", "does not run", runner.Invalid},
	} {
		dir := t.TempDir()
		fakePython(t, dir, "py", c.script)
		_, err := Ensure(t.Context(), Worker(t.TempDir(), filepath.Join(dir, "py")), nil)
		if runner.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", c.name, err)
		}
		if hint := runner.HintOf(err); c.name == "not Python" && !strings.Contains(hint, "name a Python 3.11 to 3.14") {
			t.Errorf("%s: hint %q", c.name, hint)
		}
	}
	if _, err := Ensure(t.Context(), Worker(t.TempDir(), "/nowhere/python"), nil); runner.KindOf(err) != runner.NotFound {
		t.Errorf("no such file: got %v", err)
	}
}

// A hanging child ends with its whole group when the caller gives up.
func TestCommandCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	tail, err := command{dir: t.TempDir(), env: os.Environ(), args: []string{"/bin/sh", "-c", "sleep 1000 & echo $!; wait"}, line: func(string) {
		cancel(fmt.Errorf("enough"))
	}}.run(ctx)
	if runner.KindOf(err) != runner.Canceled || !strings.Contains(err.Error(), "enough") || len(tail) != 1 {
		t.Fatalf("got %q, %v", tail, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; { // a signal is sent at once, and taken when the child is next run
		stat, err := os.ReadFile("/proc/" + tail[0] + "/stat") // gone, or not reaped yet
		if err != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("its child runs on: %s", stat)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestReadTail(t *testing.T) {
	var lines int
	text := strings.Repeat("x", 5000) + "\n\n\xff bad\r" + strings.Repeat("n\n", 100)
	tail := readTail(strings.NewReader(text), func(s string) {
		if lines++; len(s) > maxLine {
			t.Errorf("a line of %d bytes", len(s))
		}
	})
	if lines != 102 || len(tail) != tailLines {
		t.Errorf("got %d lines, %d kept", lines, len(tail))
	}
}

func TestDownloads(t *testing.T) {
	var got []Progress
	d := downloads{progress: func(p Progress) { got = append(got, p) }}
	for _, l := range []string{"Downloading torch (2.0GiB)", "Downloading numpy (1.5MiB)", " Downloaded numpy", "Prepared 2 packages in 1s", " Downloaded torch"} {
		d.line(l)
	}
	last := got[len(got)-1]
	if got[2].DoneBytes != 3<<19 || last.DoneBytes != last.TotalBytes || last.TotalBytes != 2<<30+3<<19 {
		t.Errorf("got %+v", got)
	}
}

func TestChildEnviron(t *testing.T) {
	got := childEnviron([]string{"PATH=/bin", "PYTHONPATH=/x", "PYTHONHOME=/y", "VIRTUAL_ENV=/v", "PIP_INDEX_URL=u", "PIP_TARGET=/t", "UV_SYSTEM_PYTHON=1", "UV_LINK_MODE=copy", "SSL_CERT_FILE=c", "https_proxy=p", "SECRET=s", "LC_ALL=C"})
	want := []string{"PATH=/bin", "PIP_INDEX_URL=u", "UV_LINK_MODE=copy", "SSL_CERT_FILE=c", "https_proxy=p", "LC_ALL=C"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestWithIndex(t *testing.T) {
	config := "global.index-url='g'\nglobal.cert='/c'\ninstall.index-url='i'\n:env:.extra-index-url='\\nx\\ny'\n"
	got := withIndex([]string{"PATH=/bin"}, config)
	if want := []string{"PATH=/bin", "UV_DEFAULT_INDEX=i", "UV_INDEX=x y", "SSL_CERT_FILE=/c"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got := withIndex([]string{"UV_INDEX_URL=u"}, config); !slices.Contains(got, "UV_INDEX_URL=u") || slices.Contains(got, "UV_DEFAULT_INDEX=i") {
		t.Errorf("what is set for uv does not win: %q", got)
	}
}

func TestTree(t *testing.T) {
	cache := t.TempDir()
	files := fstest.MapFS{"p/__init__.py": {Data: []byte("x = 1\n")}, "p/q/r.py": {Data: []byte("")}}
	dir, err := extract(cache, files)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := extract(cache, files); err != nil || again != dir {
		t.Errorf("got %s, %v, then %s", dir, err, again)
	}
	for name, damage := range map[string]func() error{
		"changed": func() error { return os.WriteFile(filepath.Join(dir, "p/__init__.py"), []byte("x = 2\n"), 0o644) },
		"removed": func() error { return os.Remove(filepath.Join(dir, "p/q/r.py")) },
		"added":   func() error { return os.WriteFile(filepath.Join(dir, "p/json.py"), nil, 0o644) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if _, err := extract(cache, files); err != nil {
			t.Fatal(err)
		}
		got, _, err := readTree(os.DirFS(dir))
		if err != nil || len(got) != 2 || string(got["p/__init__.py"]) != "x = 1\n" {
			t.Errorf("%s: not repaired: %q (%v)", name, got, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "p/__pycache__"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "p/__pycache__/x.pyc"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := extract(cache, files); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "p/__pycache__/x.pyc")); err != nil {
		t.Errorf("byte code counts as damage: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "python", "tmp-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
