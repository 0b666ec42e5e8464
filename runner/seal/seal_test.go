package seal_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/seal"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRestore: what each damage comes to, and that it is then good.
func TestRestore(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		did    string // empty: nothing
		left   []string
	}{
		"good":          {func(*testing.T, string) {}, "", []string{"a/x.py", "b/y.so"}},
		"cut short":     {func(t *testing.T, d string) { write(t, d+"/a/x.py", "co") }, "a/x.py has 2 bytes, had 4", nil},
		"changed":       {func(t *testing.T, d string) { write(t, d+"/b/y.so", "lob") }, "b/y.so was changed", nil},
		"missing":       {func(t *testing.T, d string) { os.Remove(d + "/b/y.so") }, "b/y.so is missing", nil},
		"never sealed":  {func(t *testing.T, d string) { os.Remove(d + "/seal.json") }, "it has files and no seal", nil},
		"seal broken":   {func(t *testing.T, d string) { write(t, d+"/seal.json", "{") }, "its seal cannot be read", nil},
		"another seal":  {func(t *testing.T, d string) { write(t, d+"/seal.json", `{"format":"x","files":{}}`) }, "its seal cannot be read", nil},
		"files after":   {func(t *testing.T, d string) { write(t, d+"/a/z", "half") }, "removed 1 files that came after", []string{"a/x.py", "b/y.so"}},
		"after and cut": {func(t *testing.T, d string) { write(t, d+"/a/z", "half"); write(t, d+"/a/x.py", "") }, "a/x.py has 0 bytes, had 4", nil},
		"all gone":      {func(t *testing.T, d string) { os.RemoveAll(d) }, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cache")
			write(t, dir+"/a/x.py", "code")
			write(t, dir+"/b/y.so", "bin")
			if err := seal.Write(dir); err != nil {
				t.Fatal(err)
			}
			c.damage(t, dir)
			did, err := seal.Restore(dir)
			if err != nil || (did == "") != (c.did == "") || !strings.Contains(did, c.did) {
				t.Errorf("did %q, %v, want %q", did, err, c.did)
			}
			for _, path := range []string{"a/x.py", "b/y.so", "a/z"} {
				_, err := os.Stat(filepath.Join(dir, path))
				if want := strings.Contains(strings.Join(c.left, " "), path); (err == nil) != want {
					t.Errorf("%s is there: %v, want %v", path, err == nil, want)
				}
			}
			if strings.Contains(did, "aside") {
				if _, err := os.Stat(dir + ".broken"); err != nil {
					t.Errorf("set aside: %v", err)
				}
			}
			if did, err := seal.Restore(dir); did != "" || err != nil {
				t.Errorf("again: %q, %v", did, err)
			}
		})
	}
}

// TestSealAgain: a second certificate takes in what came since, and an earlier
// broken directory makes way for the next.
func TestSealAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	for _, file := range []string{"one", "two"} {
		write(t, filepath.Join(dir, file), file)
		if err := seal.Write(dir); err != nil {
			t.Fatal(err)
		}
		if did, err := seal.Restore(dir); did != "" || err != nil {
			t.Errorf("%s: %q, %v", file, did, err)
		}
	}
	for range 2 {
		write(t, filepath.Join(dir, "one"), "other")
		if did, err := seal.Restore(dir); !strings.Contains(did, "set aside") || err != nil {
			t.Errorf("%q, %v", did, err)
		}
	}
	if err := seal.Write(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a directory that is not there was sealed")
	}
}
