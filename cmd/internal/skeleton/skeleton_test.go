package skeleton

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// TestFindSDK: inside of a clone none is needed, elsewhere the one that is named
// or that this test was built from.
func TestFindSDK(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(root, "go.mod"), []byte("module "+modulePath+"\n\ngo 1.25.0\n"), 0o600), os.MkdirAll(filepath.Join(root, "a", "b"), 0o700),
		os.WriteFile(filepath.Join(other, "go.mod"), []byte("module "+modulePath+"/else\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ asked, directory, want, says string }{
		{"", filepath.Join(root, "x"), "", ""},
		{"", filepath.Join(root, "a", "b", "x"), "", ""},
		{root, filepath.Join(root, "x"), root, ""},
		{root, filepath.Join(other, "x"), root, ""},
		{"", filepath.Join(other, "x"), builtFrom(), ""},
		{other, filepath.Join(root, "x"), "", "SDK: want a clone of " + modulePath},
		{filepath.Join(root, "a"), filepath.Join(root, "x"), "", "SDK: want a clone"},
	} {
		got, err := findSDK(c.asked, c.directory)
		if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("asked %q for %s: want %q, got %q, %v", c.asked, c.directory, c.want, got, err)
		}
	}
}

// TestNothingIsLeft: where the plugin cannot be built, its directory is not there.
func TestNothingIsLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	t.Setenv("PATH", "")
	_, err := Make(t.Context(), Request{Language: "go", Name: "x", Directory: dir})
	if err == nil || runner.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}

// TestFirstRunShowsAnEdit: what the first run is trained on has two sources and
// several lengths, all of which fit a row, and nothing of it is held out.
func TestFirstRunShowsAnEdit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	if _, err := Make(t.Context(), Request{Language: "python", Name: "x", Directory: dir}); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	c, err := config.Load("run.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, file := range append(slices.Clone(c.Data.Files), c.Data.HeldoutFiles...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		of := map[int]bool{}
		for line := range strings.Lines(string(text)) {
			var sample struct{ Text string }
			if err := json.Unmarshal([]byte(line), &sample); err != nil || seen[sample.Text] != "" {
				t.Errorf("%s: %q: %v, seen in %q", file, line, err, seen[sample.Text])
			}
			seen[sample.Text] = file
			of[len(sample.Text)] = true
			if n, most := len(sample.Text), slices.Max(c.Training.Buckets); n > most {
				t.Errorf("%s: want at most %d tokens, got %d", file, most, n)
			}
		}
		if len(of) < 8 {
			t.Errorf("%s: want many lengths, got %v", file, of)
		}
	}
	if n := len(c.Data.Files); n < 2 || c.Data.Regenerate.Samples != 0 || len(seen) != 2*(trained+heldout) {
		t.Errorf("want two sources as they are, got %d files, %d samples", n, len(seen))
	}
}

// TestRepin changes sums alone.
func TestRepin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.yaml")
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	if err := os.WriteFile(file, []byte("# sums\nx: "+a+" # mine\ny: "+b+"\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := Repin(file, map[string]string{a: b, b: a}); err != nil { // swapped, in one pass
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || string(text) != "# sums\nx: "+b+" # mine\ny: "+a+"\n" {
		t.Errorf("got %s, %v", text, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got %v, %v", info, err)
	}
	if err := Repin(file+"x", nil); runner.KindOf(err) != runner.NotFound {
		t.Errorf("got %v", err)
	}
}
