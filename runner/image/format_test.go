package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// sample is a checkpoint of version 1, kept as a drafter wrote it. It is never
// written anew: a later version must still read it.
const sample = "testdata/format1/step-7"

// TestFormat1 reads the sample.
func TestFormat1(t *testing.T) {
	all, err := List(filepath.Dir(sample))
	if err != nil || len(all) != 1 || all[0].Err != nil {
		t.Fatalf("got %+v, %v", all, err)
	}
	file, f, err := Open(sample)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if f.Step != 7 || f.Lineage != 2 || f.Bytes != 888 || !strings.HasPrefix(f.Chain, "9414886b1ebf") {
		t.Errorf("facts %+v", f)
	}
	h, err := ReadHeader(file, f.Bytes)
	if err != nil || h.Step != 7 || h.Tensors != 6 {
		t.Errorf("header %+v, %v", h, err)
	}
}

// TestLaterFormat: a later version is refused by that name, whatever else it
// holds, and nothing of it is changed.
func TestLaterFormat(t *testing.T) {
	for name, c := range map[string]struct{ file, from, to string }{
		"facts":                   {FactsFile, `"dflash-runner-checkpoint/1"`, `"dflash-runner-checkpoint/2"`},
		"facts with a new field":  {FactsFile, `"format": "dflash-runner-checkpoint/1"`, `"shards": 8, "format": "dflash-runner-checkpoint/2"`},
		"facts without an old":    {FactsFile, `"chain"`, `"chains": [], "format": "dflash-runner-checkpoint/2", "x"`},
		"the image, facts as now": {ImageFile, "dflash-runner-image/1", "dflash-runner-image/2"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "step-7")
			if err := os.CopyFS(dir, os.DirFS(sample)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, c.file)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(b), c.from) {
				t.Fatalf("%s holds no %s", path, c.from)
			}
			later := strings.Replace(string(b), c.from, c.to, 1)
			if err := os.WriteFile(path, []byte(later), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.file == ImageFile { // what is left of it is whole
				file, err := os.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				_, err = ReadHeader(file, uint64(len(later)))
				wantLater(t, err, `want "dflash-runner-image/1", got "dflash-runner-image/2"`)
				return
			}
			_, err = Verify(dir)
			wantLater(t, err, `want "dflash-runner-checkpoint/1", got "dflash-runner-checkpoint/2"`)
			if now, err := os.ReadFile(path); err != nil || string(now) != later {
				t.Errorf("it was changed: %v", err)
			}
		})
	}
}

func wantLater(t *testing.T, err error, want string) {
	t.Helper()
	if runner.KindOf(err) != runner.Invalid || err == nil || !strings.Contains(err.Error(), want+", which a later version") || runner.HintOf(err) == "" {
		t.Errorf("got %v (hint %q), want %s", err, runner.HintOf(err), want)
	}
}
