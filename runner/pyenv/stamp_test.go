package pyenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeEnv lays out a directory that verifies.
func fakeEnv(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	site := filepath.Join(dir, "lib", "python3.11", "site-packages")
	for path, text := range map[string]string{
		filepath.Join(dir, "base"):                               "python",
		filepath.Join(site, "a", "__init__.py"):                  "",
		filepath.Join(site, "a-1.0.dist-info", "RECORD"):         "a/__init__.py,sha256=x,0\na-1.0.dist-info/RECORD,,\n../../../bin/a,,\n",
		filepath.Join(site, "b_c-2.1.post1.dist-info", "RECORD"): "b.py,sha256=x,0\n",
		filepath.Join(site, "b.py"):                              "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "base"), filepath.Join(dir, "bin", "python")); err != nil {
		t.Fatal(err)
	}
	s := stamp{Format: stampFormat, Lock: "l", Installer: "i", Python: "3.11.7", Site: filepath.Join("lib", "python3.11", "site-packages")}
	s.Fingerprint = s.fingerprint()
	if err := s.survey(dir); err != nil {
		t.Fatal(err)
	}
	if strings.Join(s.Top, " ") != "a a-1.0.dist-info b.py" || len(s.Packages) != 2 {
		t.Fatalf("survey: got %q, %v", s.Top, s.Packages)
	}
	if err := s.write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestVerify(t *testing.T) {
	remove := func(parts ...string) func(string) error {
		return func(dir string) error { return os.RemoveAll(filepath.Join(append([]string{dir}, parts...)...)) }
	}
	write := func(text string, parts ...string) func(string) error {
		return func(dir string) error {
			return os.WriteFile(filepath.Join(append([]string{dir}, parts...)...), []byte(text), 0o644)
		}
	}
	site := func(parts ...string) []string {
		return append([]string{"lib", "python3.11", "site-packages"}, parts...)
	}
	for _, c := range []struct {
		name   string
		damage func(string) error
		lock   string
		want   string
	}{
		{"whole", func(string) error { return nil }, "l", ""},
		{"a package more", func(dir string) error {
			return os.MkdirAll(filepath.Join(append([]string{dir}, site("own-1.dist-info")...)...), 0o755)
		}, "l", ""},
		{"gone", remove(), "l", "absent"},
		{"no stamp", remove(stampName), "l", "half made"},
		{"an empty stamp", write("", stampName), "l", "damaged: its stamp"},
		{"a stamp that was edited", func(dir string) error {
			b, err := os.ReadFile(filepath.Join(dir, stampName))
			if err != nil {
				return err
			}
			return write(strings.Replace(string(b), "3.11.7", "3.11.8", 1), stampName)(dir)
		}, "l", "damaged: its stamp"},
		{"another lock", func(string) error { return nil }, "m", "out of date: the lock"},
		{"no interpreter", remove("base"), "l", "damaged: its interpreter"},
		{"another interpreter", write("python 3.12", "base"), "l", "out of date: the Python"},
		{"no dist-info", remove(site("a-1.0.dist-info")...), "l", "damaged: a-1.0"},
		{"a cut RECORD", write("b.py", site("b_c-2.1.post1.dist-info", "RECORD")...), "l", "damaged: b_c-2.1.post1"},
		{"no package", remove(site("a")...), "l", "damaged: a is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := fakeEnv(t)
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			_, got := verify(dir, c.lock, "i")
			if got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
